"""The newest known copy of each object that matters, trimmed, and indexed by service; and what could not be read.

Written by watch.py and reflector.py (events and lists) and with the API server's answers to our own writes; read by
reconcile/observe and the scaling loop. Not a source of truth: everything here can be read again from the API server.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

from phasewise_operator.kinds import INFERENCE_SERVICE, POD, Kind, Manifest
from phasewise_operator.nodes import Nodes
from phasewise_operator.trim import trim
from phasewise_runtime import contract

Key = tuple[str, str]
"""Namespace and name of an InferenceService."""
DELETED_LIMIT = 10_000


class Store:
    def __init__(self) -> None:
        self._services: dict[Key, Manifest] = {}
        self._children: defaultdict[Key, dict[tuple[str, str], Manifest]] = defaultdict(dict)
        self._deleted: OrderedDict[str, int] = OrderedDict()
        """Resource version of the newest deletions, by uid: an older list must not bring the objects back. A newer
        version may: an object that loses our label is reported as deleted, and is ours again when it has it."""
        self._service_of: dict[str, Key] = {}
        """Service of each child, by the child's uid."""
        self._unread: dict[tuple[str, str | None], str] = {}
        """Why objects of a kind (its name) in a namespace (None: in all) are not known."""
        self.nodes = Nodes(self._keys_on)

    def put(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """Keep the newer of the known copy and this one. Returns the services concerned: none if it is not ours, two if
        its label names another service than before, of which the first may have to repair the label.

        None, too, of a service that is known at this version: the watch shows a status that the operator itself wrote,
        and another pass would find nothing. A child that we wrote does concern its service: the pass that wrote it did
        not see it. A child whose label became empty concerns the service that it belonged to."""
        key, uid = service_key(kind, manifest), str(manifest["metadata"].get("uid"))
        if _number(manifest) <= self._deleted.get(uid, -1):
            return set()
        if key is None:
            return self._disown(kind, manifest)
        slim = trim(kind, manifest)
        if kind is INFERENCE_SERVICE:
            known = self._services.get(key)
            self._services[key] = _newer(known, slim)
            return set() if known is not None and _identity(known) == _identity(slim) else {key}
        ref = (kind.name, str(manifest["metadata"]["name"]))
        before = self._service_of.get(uid, key)
        known = self._children.get(before, {}).get(ref)
        if _newer(known, slim) is not slim:
            return {before}
        if known is not None:
            self._remove_child(before, ref, str(known["metadata"].get("uid")))
        self._children[key][ref] = slim
        self._service_of[uid] = key
        return {before, key}

    def _disown(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """Of an object that no label gives to a service any more, as `drop`; nothing if it never was, or is again."""
        before = self._service_of.get(str(manifest["metadata"].get("uid")))
        ref = (kind.name, str(manifest["metadata"]["name"]))
        known = self._children.get(before, {}).get(ref) if before else None
        return set() if known is None or _newer(known, manifest) is known else self.drop(kind, manifest)

    def _remove_child(self, key: Key, ref: tuple[str, str], uid: str) -> None:
        """Unless another object of that kind and name has come since."""
        self._service_of.pop(uid, None)
        children = self._children.get(key, {})
        if children.get(ref, {}).get("metadata", {}).get("uid") == uid:
            del children[ref]
        if not children:
            self._children.pop(key, None)

    def drop(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """Forget a deleted object, unless another of the same name has come since. Returns the services concerned."""
        uid = str(manifest["metadata"].get("uid"))
        known = self._service_of.get(uid)
        keys = {key for key in (service_key(kind, manifest), known) if key is not None}
        if not keys:
            return keys
        self._deleted[uid] = max(_number(manifest), self._deleted.get(uid, 0))
        if len(self._deleted) > DELETED_LIMIT:
            self._deleted.popitem(last=False)
        for key in keys:
            if kind is not INFERENCE_SERVICE:
                self._remove_child(key, (kind.name, str(manifest["metadata"]["name"])), uid)
            elif self._services.get(key, {}).get("metadata", {}).get("uid") == uid:
                del self._services[key]
        return keys

    def service(self, key: Key) -> Manifest | None:
        return self._services.get(key)

    def services(self) -> list[Manifest]:
        """All that are not being deleted."""
        return [live for live in self._services.values() if "deletionTimestamp" not in live["metadata"]]

    def children(self, key: Key, kind: Kind | None = None) -> list[Manifest]:
        """All children of a service, or those of one kind, by name."""
        known = self._children.get(key, {})
        return [m for (k, _), m in sorted(known.items()) if kind is None or k == kind.name]

    def keys(self) -> set[Key]:
        return set(self._services) | set(self._children)

    def _keys_on(self, node: str | None) -> set[Key]:
        """Services with pods on a node, or (None) any."""
        return {
            key
            for key, children in self._children.items()
            if any(kind == POD.name and node in (None, m["spec"].get("nodeName")) for (kind, _), m in children.items())
        }

    def service_count(self) -> int:
        return len(self._services)

    def put_listed(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """As `put`, of an object from a list: one that is known in this version is no change."""
        known = self._known(kind, manifest)
        if known is not None and _identity(known) == _identity(manifest):
            return set()
        return self.put(kind, manifest)

    def drop_unlisted(self, kind: Kind, namespace: str | None, uids: Iterable[str], version: float) -> set[Key]:
        """After a list of a kind: what it lacks was deleted. Returns the services that changed.

        `uids`: of all that was listed. `version`: of the list; what is newer came while the list was under way, and is
        not removed for its lack.
        """
        changed: set[Key] = set()
        listed = set(uids)
        for manifest in self._all(kind):
            meta = manifest["metadata"]
            listed_if_present = namespace in (None, meta["namespace"]) and _number(manifest) <= version
            if listed_if_present and str(meta.get("uid")) not in listed:
                changed |= self.drop(kind, manifest)
        return changed

    def unknown(self, kind: Kind, listed: Iterable[Manifest]) -> list[Manifest]:
        """Of a list those that are unknown here, or known only in an older version."""
        known = [(self._known(kind, m), m) for m in listed]
        return [m for ours, m in known if ours is None or (_newer(ours, m) is m and _identity(ours) != _identity(m))]

    def _all(self, kind: Kind) -> list[Manifest]:
        if kind is INFERENCE_SERVICE:
            return list(self._services.values())
        return [m for children in self._children.values() for (k, _), m in children.items() if k == kind.name]

    def _known(self, kind: Kind, manifest: Manifest) -> Manifest | None:
        key = service_key(kind, manifest)
        if key is None or kind is INFERENCE_SERVICE:
            return self._services.get(key) if key else None
        return self._children.get(key, {}).get((kind.name, str(manifest["metadata"]["name"])))

    def set_unread(self, kind: Kind, namespace: str | None, why: str = "") -> None:
        """Objects of the kind in the namespace are not known. `why`: empty where they are only not listed yet."""
        self._unread[kind.name, namespace] = why

    def set_read(self, kind: Kind, namespace: str | None) -> set[Key]:
        """They are known now. Returns the services that waited for that."""
        if self._unread.pop((kind.name, namespace), None) is None:
            return set()
        return {key for key in self._services if namespace in (None, key[0]) and not self.unread(key[0])}

    def unread(self, namespace: str) -> list[str]:
        """Why objects of a namespace are not known, by kind; empty: all of them are."""
        return [why for (_, where), why in self._unread.items() if where in (None, namespace)]


def service_key(kind: Kind, manifest: Manifest) -> Key | None:
    """Which service an object belongs to: itself, or the service that its label names; None: not ours."""
    meta: dict[str, Any] = manifest["metadata"]
    if kind is INFERENCE_SERVICE:
        return (meta["namespace"], meta["name"])
    labels: dict[str, str] = meta.get("labels") or {}
    name = labels.get(contract.LABEL_SERVICE)
    return (meta["namespace"], name) if name else None


def _newer(known: Manifest | None, received: Manifest) -> Manifest:
    """The answer to our own write may come before the watch's event of an older version. Versions of an object grow."""
    if known is None or known["metadata"].get("uid") != received["metadata"].get("uid"):
        return received
    return received if _number(received) >= _number(known) else known


def _identity(manifest: Manifest) -> tuple[object, object]:
    meta = manifest["metadata"]
    return meta.get("uid"), meta.get("resourceVersion")


def _number(manifest: Manifest) -> int:
    text = str(manifest["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
