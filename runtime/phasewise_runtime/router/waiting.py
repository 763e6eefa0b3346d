"""The requests without a first token, and what each waits for. Pure: holds values, `now` is an argument."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from phasewise_runtime.contract import WAIT_PHASES

IN_QUEUE, IN_PREFILL, IN_DECODE = WAIT_PHASES


class Waiter:
    """One request. It may go back a phase, and come back after it has left: its wait has gone on since it was read."""

    __slots__ = ("_room", "phase", "since")

    def __init__(self, room: WaitingRoom, since: float) -> None:
        self._room = room
        self.since = since
        self.phase: str | None = None
        """None: it does not wait."""

    def wait_in(self, phase: str) -> None:
        self.phase = phase
        self._room.waiters.add(self)

    def leave(self) -> None:
        """The first token is there, nothing tells when it comes, or the request has ended."""
        self.phase = None
        self._room.waiters.discard(self)


@dataclass(frozen=True, slots=True)
class Count:
    awaiting: int = 0
    overdue: int = 0


class WaitingRoom:
    def __init__(self) -> None:
        self.waiters: set[Waiter] = set()

    def enter(self, since: float) -> Waiter:
        """A request that was read at `since` waits in the queue."""
        waiter = Waiter(self, since)
        waiter.wait_in(IN_QUEUE)
        return waiter

    def count(self, read_before: float | None) -> dict[str, Count]:
        """How many there are in each phase; overdue are those that were read before that moment, if one is given."""
        awaiting = Counter(w.phase for w in self.waiters)
        overdue = Counter(w.phase for w in self.waiters if read_before is not None and w.since < read_before)
        return {phase: Count(awaiting[phase], overdue[phase]) for phase in WAIT_PHASES}
