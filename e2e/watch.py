"""What is seen of a service's pools from outside: printed as a live table, and kept for whoever judges it.

A terminal gets the last rows rewritten in place and keeps those where something changed; a log gets a line where
something changed, and one now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from e2e import cluster, kube, operators, table

EVERY = 3.0
LOG_SECONDS = 15.0
"""How long a log goes without a line where nothing changes."""


@dataclass
class Watch:
    service: str
    namespace: str = "default"
    began: float = field(default_factory=time.monotonic)
    rows: dict[str, table.Row] = field(default_factory=dict[str, table.Row])
    """By role, as last seen."""
    decisions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Every change of size since it began, oldest first."""
    most: dict[str, int] = field(default_factory=dict[str, int])
    """By role, the most replicas that were ever wanted."""

    def __post_init__(self) -> None:
        self._seen: list[dict[str, Any]] = []

    def look(self) -> None:
        status = kube.get("infsvc", self.service, self.namespace).get("status", {})
        try:
            metrics = operators.metrics()
        except cluster.ClusterError:
            metrics = {}  # no operator leads just now: the status is what there is
        self._collect(status)
        self.rows = {row.role: row for row in table.rows(status, metrics, self.service, self.namespace)}
        for role, row in self.rows.items():
            self.most[role] = max(self.most.get(role, 0), row.wanted, row.ready)

    def _collect(self, status: kube.Object) -> None:
        """The status keeps the last few only; what it tells at the first look is of the past."""
        fresh = [d for d in table.decisions(status) if d not in self._seen]
        if self.rows:
            self.decisions += fresh
        self._seen += fresh

    def until(self, done: Callable[[], bool], seconds: float, tell: Callable[[], object] = lambda: None) -> bool:
        """Look every now and then, and tell, until it is done; False where the time is over first."""
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            tell()
            if done():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(EVERY)

    def at(self, role: str, replicas: int) -> bool:
        """The pool has that many replicas, all ready, and no other is wanted."""
        return (self.rows[role].ready, self.rows[role].wanted) == (replicas, replicas)

    def told(self) -> str:
        """All that was seen, for a failure: the table as it is, and the decisions that led there."""
        return "\n".join(["", table.HEAD, *map(table.told, self.decisions), *map(self._line, self.rows.values())])

    def _line(self, row: table.Row) -> str:
        return table.line(time.monotonic() - self.began, row)

    def all_at(self, replicas: int) -> bool:
        return all(self.at(role, replicas) for role in self.rows)


class Printer:
    """Tells a Watch's rows on standard output."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._live = sys.stdout.isatty()
        self._last: list[tuple[int, int, str, bool | None]] = []
        self._decisions = len(watch.decisions)
        self._told = 0.0
        self._open = 0
        print(table.HEAD)

    def tell(self) -> None:
        now = time.monotonic()
        rows = list(self._watch.rows.values())
        facts = [(row.ready, row.wanted, row.reason, row.in_target) for row in rows]
        fresh = self._watch.decisions[self._decisions :]
        self._decisions += len(fresh)
        is_news = bool(fresh) or facts != self._last or now - self._told > LOG_SECONDS
        if not is_news and not self._live:
            return
        if self._live and self._open:
            print(f"\x1b[{self._open}A\x1b[J", end="")
        for decision in fresh:
            print(table.told(decision))
        print("\n".join(table.line(now - self._watch.began, row) for row in rows), flush=True)
        self._open = 0 if is_news else len(rows)
        if is_news:
            self._last, self._told = facts, now
