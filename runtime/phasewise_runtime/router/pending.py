"""Pending requests: those without a first token, and the phase that each waits in. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from phasewise_runtime.contract import WAIT_PHASES

IN_QUEUE, IN_PREFILL, IN_DECODE = WAIT_PHASES


class PendingRequest:
    """One request. A retry puts it back into an earlier phase; its wait always counts from when it was read."""

    __slots__ = ("_pending", "phase", "since")

    def __init__(self, pending: PendingRequests, since: float) -> None:
        self._pending = pending
        self.since = since
        self.phase: str | None = None
        """None: it is not waiting for its first token."""

    def enter(self, phase: str) -> None:
        self.phase = phase
        self._pending.requests.add(self)

    def leave(self) -> None:
        """The first token came, or its moment cannot be seen (an answer that does not stream), or the request ended."""
        self.phase = None
        self._pending.requests.discard(self)


@dataclass(frozen=True, slots=True)
class Count:
    awaiting: int = 0
    overdue: int = 0


class PendingRequests:
    def __init__(self) -> None:
        self.requests: set[PendingRequest] = set()

    def add(self, since: float) -> PendingRequest:
        """A request that was read at `since`; it waits in the queue."""
        request = PendingRequest(self, since)
        request.enter(IN_QUEUE)
        return request

    def count(self, read_before: float | None) -> dict[str, Count]:
        """Requests by phase; overdue are those read before `read_before`, if it is given."""
        awaiting = Counter(r.phase for r in self.requests)
        overdue = Counter(r.phase for r in self.requests if read_before is not None and r.since < read_before)
        return {phase: Count(awaiting[phase], overdue[phase]) for phase in WAIT_PHASES}
