"""A small API server that can be made to fail, and what drives the controller on it."""

from __future__ import annotations

import copy
from collections.abc import Callable

from tests.operator.reconcile.managed_fields import fields_of

from phasewise_operator.kinds import EVENT, Kind, Manifest
from phasewise_operator.kube import Listing
from phasewise_operator.reconcile.controller import Controller
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation
from phasewise_operator.store import Key
from phasewise_runtime import contract

KEY: Key = ("default", "chat")
Ref = tuple[str, str]
Apply = Callable[..., None]


class Api:
    """Objects by kind and name; `faults` by kind raise instead of writing."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Manifest] = {}
        self.faults: dict[str, Exception] = {}
        self.writes: list[str] = []
        self.version = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return copy.deepcopy(self.objects.get((kind.name, name)))

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> Listing:
        return Listing([], 0)

    async def apply(self, manifest: Manifest, subresource: str | None = None) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._write(f"{kind} {name} {subresource or ''}".strip(), "status" if subresource else kind)
        self.version += 1
        if subresource:
            live = self.objects[kind, name]
            live["status"] = manifest["status"]
        else:
            live = copy.deepcopy(manifest)
            body = {k: v for k, v in manifest.items() if k not in ("apiVersion", "kind")}
            entry = {"manager": contract.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields_of(body)}
            live["metadata"].update(
                creationTimestamp="2026-01-01T00:00:00Z", uid=f"uid-{name}", generation=1, managedFields=[entry]
            )
            self.objects[kind, name] = live
        live["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(live)

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        meta = body["metadata"]
        self._write(f"{kind.name} {body.get('reason') or meta['name'] + ' made'}", kind.name)
        live = copy.deepcopy(body)
        if kind is not EVENT:
            live["metadata"].update(uid=f"uid-{meta['name']}", generation=1, resourceVersion="1")
            self.objects[kind.name, meta["name"]] = copy.deepcopy(live)
        return live

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._write(f"delete {kind.name} {name}", kind.name)
        del self.objects[kind.name, name]

    def _write(self, what: str, kind: str) -> None:
        if kind in self.faults:
            raise self.faults[kind]
        self.writes.append(what)


class Loop:
    """The scaling loop, which says what it is told to say."""

    def __init__(self) -> None:
        self.says = NO_RECOMMENDATION

    def recommendation(self, key: Key, uid: str) -> Recommendation:
        return self.says


async def one_pass(controller: Controller) -> bool:
    key = await controller.queue.get()
    return await controller.reconcile(key)


def condition(api: Api, kind: str) -> tuple[str, str]:
    found = {c["type"]: c for c in api.objects["InferenceService", "chat"]["status"]["conditions"]}
    return found[kind]["status"], found[kind]["reason"]
