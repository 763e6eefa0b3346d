"""What the watches have shown: one trimmed copy of each object that matters, indexed by service.

Fed by handlers (events) and by resync (lists); read by reconcile/observe. Not a source of truth: everything here can be
thrown away and read again from the API server.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

from phasewise_operator.kinds import INFERENCE_SERVICE, Kind, Manifest
from phasewise_runtime import contract

Key = tuple[str, str]
"""Namespace and name of an InferenceService."""
REMEMBERED = 10_000


class Store:
    def __init__(self) -> None:
        self._services: dict[Key, Manifest] = {}
        self._children: defaultdict[Key, dict[tuple[str, str], Manifest]] = defaultdict(dict)
        self._gone: OrderedDict[str, int] = OrderedDict()
        """Uids that lately went, with the version: an older list must not bring them back. A newer one may: what loses
        its label and gets it back went as well."""

    def put(self, kind: Kind, manifest: Manifest) -> Key | None:
        """Keep the newer of what is known and what came; returns the key of the service concerned."""
        key = service_key(kind, manifest)
        if key is None or _number(manifest) <= self._gone.get(str(manifest["metadata"].get("uid")), -1):
            return None
        slim = trim(kind, manifest)
        if kind is INFERENCE_SERVICE:
            self._services[key] = _newer(self._services.get(key), slim)
        else:
            children, ref = self._children[key], (kind.name, str(manifest["metadata"]["name"]))
            children[ref] = _newer(children.get(ref), slim)
        return key

    def drop(self, kind: Kind, manifest: Manifest) -> Key | None:
        """Forget a deleted object, unless another of the same name has come since."""
        key = service_key(kind, manifest)
        if key is None:
            return None
        uid = manifest["metadata"].get("uid")
        self._gone[str(uid)] = max(_number(manifest), self._gone.get(str(uid), 0))
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
        if kind is INFERENCE_SERVICE:
            if self._services.get(key, {}).get("metadata", {}).get("uid") == uid:
                del self._services[key]
        else:
            children, ref = self._children[key], (kind.name, str(manifest["metadata"]["name"]))
            if children.get(ref, {}).get("metadata", {}).get("uid") == uid:
                del children[ref]
            if not children:
                del self._children[key]
        return key

    def service(self, key: Key) -> Manifest | None:
        return self._services.get(key)

    def services(self) -> list[Manifest]:
        """All that are not on their way out."""
        return [live for live in self._services.values() if "deletionTimestamp" not in live["metadata"]]

    def children(self, key: Key, kind: Kind | None = None) -> list[Manifest]:
        """All children of a service, or those of one kind, by name."""
        known = self._children.get(key, {})
        return [m for (k, _), m in sorted(known.items()) if kind is None or k == kind.name]

    def keys(self) -> set[Key]:
        return set(self._services) | set(self._children)

    def replace(self, kind: Kind, namespace: str | None, listed: Iterable[Manifest], version: int) -> set[Key]:
        """Take a list of one kind as the truth of its moment: what it lacks was deleted unseen. Returns what changed.

        Events go on coming while a list is under way, so an object that is newer than the list is not judged by it.
        """
        changed: set[Key] = set()
        seen: set[str] = set()
        for manifest in listed:
            seen.add(str(manifest["metadata"]["uid"]))
            before = self._version(kind, manifest)
            key = self.put(kind, manifest)
            if key is not None and before != manifest["metadata"].get("resourceVersion"):
                changed.add(key)
        for manifest in self._all(kind):
            meta = manifest["metadata"]
            judged = namespace in (None, meta["namespace"]) and _number(manifest) <= version
            if judged and meta["uid"] not in seen and (key := self.drop(kind, manifest)):
                changed.add(key)
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
    """Which service an object belongs to: itself, or the one its label names; None: not ours."""
    meta: dict[str, Any] = manifest["metadata"]
    if kind is INFERENCE_SERVICE:
        return (meta["namespace"], meta["name"])
    labels: dict[str, str] = meta.get("labels") or {}
    name = labels.get(contract.LABEL_SERVICE)
    return (meta["namespace"], name) if name else None


def trim(kind: Kind, manifest: Manifest) -> Manifest:
    """A copy without what nobody reads: other managers' field lists, and a pod's spec but for what it waits on."""
    meta = dict(manifest["metadata"])
    meta["managedFields"] = [m for m in meta.get("managedFields", []) if m.get("manager") == contract.FIELD_MANAGER]
    slim: Manifest = {**manifest, "metadata": meta, "kind": kind.name, "apiVersion": kind.api_version}
    if kind.name == "Pod":
        slim["spec"] = {"nodeName": manifest.get("spec", {}).get("nodeName")}
    return slim


def _newer(known: Manifest | None, came: Manifest) -> Manifest:
    """An answer to our own write may overtake the watch: never go back. Versions of one uid grow."""
    if known is None or known["metadata"].get("uid") != came["metadata"].get("uid"):
        return came
    return came if _number(came) >= _number(known) else known


def _number(manifest: Manifest) -> int:
    text = str(manifest["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
