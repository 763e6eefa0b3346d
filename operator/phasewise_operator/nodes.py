"""Which nodes are drained: the names of those that take no new pods. Kept by a reflector; read by reconcile/observe.

The API server selects them (`spec.unschedulable=true`), so heartbeats of the others are never sent. Without the right
to read nodes, as in a release with watchNamespaces, nothing is known, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Final, TypeAlias

from phasewise_operator.kinds import Kind, Manifest

Keys: TypeAlias = set[tuple[str, str]]
CORDONED: Final = "spec.unschedulable=true"
"""Field selector."""


class Nodes:
    """As a store for a reflector: what each call returns are the services concerned."""

    def __init__(self, keys_on: Callable[[str | None], Keys]) -> None:
        """`keys_on`: services with pods on a node; None: all."""
        self._keys_on = keys_on
        self._uids: dict[str, str] = {}
        """By name."""
        self._readable = False

    @property
    def cordoned(self) -> Set[str] | None:
        """None: that is not known."""
        return self._uids.keys() if self._readable else None

    def put(self, _kind: Kind, manifest: Manifest) -> Keys:
        meta = manifest["metadata"]
        known = meta["name"] in self._uids
        self._uids[meta["name"]] = str(meta.get("uid"))
        return set() if known else self._keys_on(meta["name"])

    put_listed = put

    def drop(self, _kind: Kind, manifest: Manifest) -> Keys:
        name = manifest["metadata"]["name"]
        return self._keys_on(name) if self._uids.pop(name, None) is not None else set()

    def drop_unlisted(self, _kind: Kind, _namespace: str | None, uids: Iterable[str], _version: float) -> Keys:
        listed = set(uids)
        gone = [name for name, uid in self._uids.items() if uid not in listed]
        for name in gone:
            del self._uids[name]
        return {key for name in gone for key in self._keys_on(name)}

    def set_unread(self, _kind: Kind, _namespace: str | None, _why: str = "") -> None:
        self._readable = False

    def set_read(self, _kind: Kind, _namespace: str | None) -> Keys:
        before, self._readable = self._readable, True
        return set() if before else self._keys_on(None)
