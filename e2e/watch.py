"""A service's pools as seen from outside: their sizes and latencies now, and every change of size since the beginning.

Printed as a live table: a terminal gets the last rows rewritten in place and keeps those where something changed; a log
gets a line where something changed, and one now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from e2e import cluster, kube, operators, table
from e2e.cluster.progress import WaitTimeoutError, wait_for

EVERY = 3.0
LOG_SECONDS = 15.0
"""How long a log goes without a line where nothing changes."""


@dataclass
class Watch:
    service: str
    namespace: str = "default"
    began: float = field(default_factory=time.monotonic)
    rows: dict[str, table.Row] = field(default_factory=dict[str, table.Row])
    """By role, as of the last `refresh`."""
    decisions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Every change of size since it began, oldest first."""
    max_replicas: dict[str, int] = field(default_factory=dict[str, int])
    """By role, the most replicas that were ever ready or desired."""

    def __post_init__(self) -> None:
        self._seen: list[dict[str, Any]] = []

    def refresh(self) -> None:
        status = kube.get("infsvc", self.service, self.namespace).get("status", {})
        try:
            metrics = operators.metrics()
        except cluster.ClusterError:
            metrics = {}  # no operator leads just now: the status is what there is
        self._collect(status)
        self.rows = {row.role: row for row in table.rows(status, metrics, self.service, self.namespace)}
        for role, row in self.rows.items():
            self.max_replicas[role] = max(self.max_replicas.get(role, 0), row.desired, row.ready)

    def _collect(self, status: kube.Object) -> None:
        """The status keeps the last few decisions only; those of the first refresh are of the past."""
        fresh = [d for d in table.decisions(status) if d not in self._seen]
        if self.rows:
            self.decisions += fresh
        self._seen += fresh

    def wait(self, done: Callable[[], bool], seconds: float, report: Callable[[], object] = lambda: None) -> bool:
        """Refresh and report until `done`; False where the time is over first."""

        def probe() -> bool:
            self.refresh()
            report()
            return done()

        try:
            return wait_for("the pools", probe, seconds, EVERY)
        except WaitTimeoutError:
            return False

    def at(self, role: str, replicas: int) -> bool:
        """The pool has that many ready replicas, and as many are desired."""
        return (self.rows[role].ready, self.rows[role].desired) == (replicas, replicas)

    def summary(self) -> str:
        """For a failure: the table as it is, and the decisions that led there."""
        return "\n".join(["", table.HEAD, *map(table.describe, self.decisions), *map(self._line, self.rows.values())])

    def _line(self, row: table.Row) -> str:
        return table.line(time.monotonic() - self.began, row)

    def all_at(self, replicas: int) -> bool:
        return all(self.at(role, replicas) for role in self.rows)


class Printer:
    """Prints a Watch's rows on standard output."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._live = sys.stdout.isatty()
        self._last: list[tuple[int, int, str, bool | None]] = []
        self._decisions = len(watch.decisions)
        self._printed = 0.0
        self._open = 0
        print(table.HEAD)

    def show(self) -> None:
        now = time.monotonic()
        rows = list(self._watch.rows.values())
        facts = [(row.ready, row.desired, row.reason, row.in_target) for row in rows]
        fresh = self._watch.decisions[self._decisions :]
        self._decisions += len(fresh)
        has_changed = bool(fresh) or facts != self._last or now - self._printed > LOG_SECONDS
        if not has_changed and not self._live:
            return
        if self._live and self._open:
            print(f"\x1b[{self._open}A\x1b[J", end="")
        for decision in fresh:
            print(table.describe(decision))
        print("\n".join(table.line(now - self._watch.began, row) for row in rows), flush=True)
        self._open = 0 if has_changed else len(rows)
        if has_changed:
            self._last, self._printed = facts, now
