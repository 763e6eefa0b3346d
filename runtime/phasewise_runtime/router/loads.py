"""How much each pod has had to do for this router: legs, and their time integrals. Pure: `now` is an argument.

The integrals are exact: settled at each change and whenever they are read, so a long leg shows while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    """One pod, by its name: two pods of one name, one after the other, are one series."""

    since: float
    """All sums are settled up to here."""
    running: int = 0
    ended_well: int = 0
    inflight_seconds: float = 0.0
    busy_seconds: float = 0.0
    gone: bool = False

    def settle(self, now: float) -> None:
        seconds = max(0.0, now - self.since)
        self.inflight_seconds += seconds * self.running
        self.busy_seconds += seconds if self.running else 0.0
        self.since = now


class Loads:
    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], Load] = {}

    def add(self, role: str, pod: str, now: float) -> None:
        """The pod is there: its series begin at zero, so that its first legs make a difference to be seen."""
        self._pods.setdefault((role, pod), Load(since=now)).gone = False

    def drop(self, role: str, pod: str) -> None:
        """The pod is gone, and its series with it, once its last leg has ended."""
        if load := self._pods.get((role, pod)):
            load.gone = True
            self._sweep(role, pod, load)

    def begin(self, role: str, pod: str, now: float) -> None:
        load = self._pods.setdefault((role, pod), Load(since=now, gone=True))
        load.settle(now)
        load.running += 1

    def end(self, role: str, pod: str, now: float, *, well: bool) -> None:
        load = self._pods[role, pod]
        load.settle(now)
        load.running -= 1
        load.ended_well += well
        self._sweep(role, pod, load)

    def settled(self, now: float) -> Iterator[tuple[str, str, Load]]:
        """Role, name and load of each pod, up to `now`."""
        for (role, pod), load in self._pods.items():
            load.settle(now)
            yield role, pod, load

    def _sweep(self, role: str, pod: str, load: Load) -> None:
        if load.gone and not load.running:
            del self._pods[role, pod]
