"""A fake API server that can be made to fail, and helpers that drive a worker on it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from tests.operator.reconcile.live_objects import fields_of

from phasewise_operator.kinds import EVENT, Kind, Manifest, kind_of
from phasewise_operator.kube import Listing
from phasewise_operator.reconcile.managed_fields import owned_fields
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.scaling.signals.kv_evidence import KvEvidence
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation
from phasewise_operator.store import Key
from phasewise_runtime import contract

KEY: Key = ("default", "chat")
Ref = tuple[str, str]
Apply = Callable[..., None]


class Api:
    """Objects by kind and name; `faults` by kind raise instead of writing, `lists` are what a list of a kind returns.

    Server-side apply merges as a real API server does: it sets what is applied, removes what we applied before and do
    not any more, and keeps the rest. Not done: validation, defaults, the ownership of other managers (an edit that a
    test makes takes no field from us), merging lists by key (a list is applied with all its items), generations of
    children, garbage collection, watches.
    """

    def __init__(self) -> None:
        self.objects: dict[Ref, Manifest] = {}
        self.lists: dict[str, list[Manifest]] = {}
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.faults: dict[str, Exception] = {}
        self.writes: list[str] = []
        self.applied: list[Manifest] = []
        self.version = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return copy.deepcopy(self.objects.get((kind.name, name)))

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> Listing:
        self.queries.append((kind.name, query))
        if f"list {kind.name}" in self.faults:
            raise self.faults[f"list {kind.name}"]
        return Listing(copy.deepcopy(self.lists.get(kind.name, [])), self.version)

    async def apply(self, manifest: Manifest, subresource: str | None = None) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._write(f"{kind} {name} {subresource or ''}".strip(), "status" if subresource else kind)
        self.applied.append(copy.deepcopy(manifest))
        self.version += 1
        if subresource:
            live = self.objects[kind, name]
            live["status"] = copy.deepcopy(manifest["status"])
        else:
            live = self._merged(manifest)
            self.objects[kind, name] = live
        live["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(live)

    def _merged(self, manifest: Manifest) -> Manifest:
        stamps = {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": f"uid-{manifest['metadata']['name']}"}
        before = self.objects.get((manifest["kind"], manifest["metadata"]["name"]), {"metadata": stamps})
        live = merge(before, copy.deepcopy(manifest), owned_fields(before))
        body = {k: v for k, v in manifest.items() if k not in ("apiVersion", "kind")}
        entry = {"manager": contract.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields_of(body)}
        live["metadata"].update(generation=1, managedFields=[entry])
        return live

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        meta = body["metadata"]
        self._write(f"{kind.name} {body.get('reason') or meta['name'] + ' made'}", kind.name)
        live = copy.deepcopy(body)
        if kind is not EVENT:
            live["metadata"].update(uid=f"uid-{meta['name']}", generation=1, resourceVersion="1")
            self.objects[kind.name, meta["name"]] = copy.deepcopy(live)
        return live

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        self._write(f"delete {kind.name} {name}", kind.name)
        del self.objects[kind.name, name]
        return True

    def _write(self, what: str, kind: str) -> None:
        if kind in self.faults:
            raise self.faults[kind]
        self.writes.append(what)


def merge(live: dict[str, Any], applied: dict[str, Any], owned: Any) -> dict[str, Any]:
    """An object after server-side apply; `owned`: FieldsV1 of what was applied before."""
    merged = dict(live)
    for key in {*live, *applied}:
        ours, known, value = owned.get(f"f:{key}"), live.get(key), applied.get(key)
        if isinstance(known, dict) and (isinstance(value, dict) or (value is None and ours)):
            merged[key] = merge(known, value or {}, ours or {})
        elif key in applied:
            merged[key] = value
        elif ours is not None:
            del merged[key]
    return merged


class Loop:
    """A scaling loop with a fixed recommendation, and routers that prove nothing."""

    def __init__(self) -> None:
        self.says = NO_RECOMMENDATION
        self.evidence = KvEvidence(proving=False)
        self.changed: list[Key] = []

    def kv_evidence(self, key: Key, uid: str) -> KvEvidence:
        return self.evidence

    def recommendation(self, key: Key, uid: str) -> Recommendation:
        return self.says

    def service_changed(self, key: Key) -> None:
        self.changed.append(key)


async def one_pass(worker: Worker) -> bool:
    """Process the next key; returns whether every child could be written."""
    async with asyncio.timeout(5):
        outcome = await worker.process_next()
    assert outcome != "error", "see the log"
    return outcome == "ok"


def condition(api: Api, kind: str) -> tuple[str, str]:
    found = {c["type"]: c for c in api.objects["InferenceService", "chat"]["status"]["conditions"]}
    return found[kind]["status"], found[kind]["reason"]


def engines(api: Api) -> list[Manifest]:
    return [m for (kind, name), m in sorted(api.objects.items()) if kind == "Deployment" and name != "chat-router"]


def set_available(api: Api, worker: Worker, live: Manifest) -> None:
    count = live["spec"]["replicas"]
    names = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    live["status"] = {
        "observedGeneration": 1,
        **dict.fromkeys(names, count),
        "conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}],
    }
    edit(api, worker, live)


def edit(api: Api, worker: Worker, live: Manifest, change: Any = lambda meta: None) -> None:
    """Of somebody else, and the watch shows it."""
    change(live["metadata"])
    api.version += 1
    live["metadata"]["resourceVersion"] = str(api.version)
    worker.reconciler.store.put(kind_of(live), copy.deepcopy(live))
