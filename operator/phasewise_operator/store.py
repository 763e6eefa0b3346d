"""The newest known copy of each object that matters, trimmed, and indexed by service.

Written by watch.py (events and lists) and with the API server's answers to our own writes; read by reconcile/observe
and the scaling loop. Not a source of truth: everything here can be thrown away and read again from the API server.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

from phasewise_operator.kinds import INFERENCE_SERVICE, Kind, Manifest
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

    def put(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """Keep the newer of the known copy and this one. Returns the services concerned: none if it is not ours, two if
        its label names another service than before, of which the first may have to repair the label.

        None, too, of a service that is known at this version: the watch shows a status that the operator itself wrote,
        and another pass would find nothing. A child that we wrote does concern its service: the pass that wrote it did
        not see it."""
        key, uid = service_key(kind, manifest), str(manifest["metadata"].get("uid"))
        if key is None or _number(manifest) <= self._deleted.get(uid, -1):
            return set()
        slim = trim(kind, manifest)
        if kind is INFERENCE_SERVICE:
            known = self._services.get(key)
            self._services[key] = _newer(known, slim)
            return set() if known is not None and _version_of(known) == _version_of(slim) else {key}
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

    def replace(self, kind: Kind, namespace: str | None, listed: Iterable[Manifest], version: int) -> set[Key]:
        """Take over a full list of a kind: objects that it lacks were deleted. Returns the services that changed.

        Watches go on while a list is under way, so an object that is newer than the list is not removed for its lack.
        """
        changed: set[Key] = set()
        seen: set[str] = set()
        for manifest in listed:
            seen.add(str(manifest["metadata"]["uid"]))
            before = self._version(kind, manifest)
            keys = self.put(kind, manifest)
            if before != manifest["metadata"].get("resourceVersion"):
                changed |= keys
        for manifest in self._all(kind):
            meta = manifest["metadata"]
            listed_if_present = namespace in (None, meta["namespace"]) and _number(manifest) <= version
            if listed_if_present and meta["uid"] not in seen:
                changed |= self.drop(kind, manifest)
        return changed

    def _all(self, kind: Kind) -> list[Manifest]:
        if kind is INFERENCE_SERVICE:
            return list(self._services.values())
        return [m for children in self._children.values() for (k, _), m in children.items() if k == kind.name]

    def _version(self, kind: Kind, manifest: Manifest) -> str | None:
        key = service_key(kind, manifest)
        if key is None:
            return None
        if kind is INFERENCE_SERVICE:
            known = self._services.get(key)
        else:
            known = self._children.get(key, {}).get((kind.name, str(manifest["metadata"]["name"])))
        return known["metadata"].get("resourceVersion") if known else None


def service_key(kind: Kind, manifest: Manifest) -> Key | None:
    """Which service an object belongs to: itself, or the service that its label names; None: not ours."""
    meta: dict[str, Any] = manifest["metadata"]
    if kind is INFERENCE_SERVICE:
        return (meta["namespace"], meta["name"])
    labels: dict[str, str] = meta.get("labels") or {}
    name = labels.get(contract.LABEL_SERVICE)
    return (meta["namespace"], name) if name else None


def trim(kind: Kind, manifest: Manifest) -> Manifest:
    """A copy without what nobody reads: the fields of other managers, and of a pod's spec all but the node."""
    meta = dict(manifest["metadata"])
    meta["managedFields"] = [m for m in meta.get("managedFields", []) if m.get("manager") == contract.FIELD_MANAGER]
    slim: Manifest = {**manifest, "metadata": meta, "kind": kind.name, "apiVersion": kind.api_version}
    if kind.name == "Pod":
        slim["spec"] = {"nodeName": manifest.get("spec", {}).get("nodeName")}
    return slim


def _newer(known: Manifest | None, received: Manifest) -> Manifest:
    """The answer to our own write may come before the watch's event of an older version. Versions of an object grow."""
    if known is None or known["metadata"].get("uid") != received["metadata"].get("uid"):
        return received
    return received if _number(received) >= _number(known) else known


def _version_of(manifest: Manifest) -> tuple[Any, Any]:
    return manifest["metadata"].get("uid"), manifest["metadata"].get("resourceVersion")


def _number(manifest: Manifest) -> int:
    text = str(manifest["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
