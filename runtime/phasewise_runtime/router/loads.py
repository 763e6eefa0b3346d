"""The load of each pod from this router: requests in flight and served, and their time integrals. Pure.

The integrals are exact: they are brought up to date at each change and at each read, so a long request counts while
it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    """One pod, by its name: a pod and its successor of the same name share one series."""

    since: float
    """The sums are up to date at this moment."""
    inflight: int = 0
    succeeded: int = 0
    inflight_seconds: float = 0.0
    busy_seconds: float = 0.0
    pod_gone: bool = False

    def settle(self, now: float) -> None:
        seconds = max(0.0, now - self.since)
        self.inflight_seconds += seconds * self.inflight
        self.busy_seconds += seconds if self.inflight else 0.0
        self.since = now


class Loads:
    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], Load] = {}

    def add(self, role: str, pod: str, now: float) -> None:
        """A pod appeared: its series start at zero, so that a rate sees its first requests."""
        self._pods.setdefault((role, pod), Load(since=now)).pod_gone = False

    def drop(self, role: str, pod: str) -> None:
        """The pod is gone; its series go once its last request has ended."""
        if load := self._pods.get((role, pod)):
            load.pod_gone = True
            self._sweep(role, pod, load)

    def begin(self, role: str, pod: str, now: float) -> None:
        load = self._pods.setdefault((role, pod), Load(since=now, pod_gone=True))
        load.settle(now)
        load.inflight += 1

    def end(self, role: str, pod: str, now: float, *, succeeded: bool) -> None:
        load = self._pods[role, pod]
        load.settle(now)
        load.inflight -= 1
        load.succeeded += succeeded
        self._sweep(role, pod, load)

    def settled(self, now: float) -> Iterator[tuple[str, str, Load]]:
        """Role, name and load of each pod, up to `now`."""
        for (role, pod), load in self._pods.items():
            load.settle(now)
            yield role, pod, load

    def _sweep(self, role: str, pod: str, load: Load) -> None:
        if load.pod_gone and not load.inflight:
            del self._pods[role, pod]
