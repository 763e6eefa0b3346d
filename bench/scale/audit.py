"""What the operator asked of the API server, counted from the server's own audit log. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

WRITES = ("create", "update", "patch", "delete", "deletecollection")
UNCOUNTED = ("leases",)
"""Renewed by the clock, not for any service."""
EVENTS = "events"


@dataclass(frozen=True)
class Calls:
    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By verb and resource, with the subresource after a slash."""
    children: int = 0
    """Objects that were written at least once, statuses and Events apart."""
    written: Counter[str] = field(default_factory=Counter[str])
    """Writes by name of the object, Events apart."""

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def writes(self) -> int:
        """Events apart."""
        return self.written.total()

    def writes_apart_from(self, service: str) -> int:
        """Writes of objects that are neither the service nor its children."""
        return sum(n for name, n in self.written.items() if name != service and not name.startswith(f"{service}-"))

    @property
    def statuses(self) -> int:
        return sum(n for (_, what), n in self.counts.items() if what.endswith("/status"))

    def lines(self) -> list[str]:
        """The most frequent first."""
        return [f"{count:>7} {verb} {what}" for (verb, what), count in self.counts.most_common()]


def count(log: Iterable[str]) -> Calls:
    """`log`: lines of an audit log at level Metadata, one JSON event each."""
    counts: Counter[tuple[str, str]] = Counter()
    written: Counter[str] = Counter()
    children: set[tuple[str, str, str]] = set()
    for line in log:
        event = json.loads(line)
        ref = event.get("objectRef", {})
        resource, below = ref.get("resource", ""), ref.get("subresource", "")
        if resource in UNCOUNTED:
            continue
        counts[event["verb"], f"{resource}/{below}" if below else resource] += 1
        if event["verb"] in WRITES and resource != EVENTS:
            name = ref.get("name", "")
            written[name] += 1
            if not below:
                children.add((resource, ref.get("namespace", ""), name))
    return Calls(counts, len(children), written)
