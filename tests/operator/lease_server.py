"""Stands for an API server that keeps Leases, with its own rule: a write needs the stored version."""

from __future__ import annotations

import asyncio
import copy

from phasewise_operator.kinds import LEASE, Kind, Manifest
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.settings import DEFAULT_LEASE


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class LeaseServer:
    """Can be made to go away, which a real one is in e2e."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str], Manifest] = {}
        self.version = 0
        self.away = False
        self.may_list = True
        self.takes_turns = False
        self.events: list[Manifest] = []
        self.timeouts: list[float] = []

    @property
    def stored(self) -> Manifest:
        """The only Lease."""
        (lease,) = self.leases.values()
        return lease

    async def call(
        self, method: str, path: str, *, query: dict[str, str] | None = None, seconds: float = 10.0
    ) -> Manifest:
        await self._answer(seconds)
        if path == LEASE.path(None):
            return {"items": copy.deepcopy(self._listed(query or {}))}
        namespace, name = path.split("/")[5], path.split("/")[7]
        if (namespace, name) not in self.leases:
            raise KubeError(404, "NotFound", path)
        return copy.deepcopy(self.leases[namespace, name])

    def _listed(self, query: dict[str, str]) -> list[Manifest]:
        if not self.may_list:
            raise KubeError(403, "Forbidden", "leases")
        if "fieldSelector" in query:
            return [lease for (_, name), lease in self.leases.items() if name == DEFAULT_LEASE]
        label, _, value = query["labelSelector"].partition("=")
        return [lease for lease in self.leases.values() if lease["metadata"].get("labels", {}).get(label) == value]

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        await self._answer(0)
        if kind is not LEASE:
            self.events.append(body)
            return body
        if (namespace, body["metadata"]["name"]) in self.leases:
            raise KubeError(409, "AlreadyExists", "")
        return self._store(body)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Manifest, seconds: float) -> Manifest:
        await self._answer(seconds)
        known = self.leases.get((namespace, name))
        if known is None or body["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", "")
        return self._store(body)

    async def close(self) -> None:
        pass

    async def _answer(self, seconds: float) -> None:
        self.timeouts.append(seconds)
        if self.takes_turns:
            await asyncio.sleep(0)
        if self.away:
            raise KubeError(0, "ConnectionRefused", "")

    def _store(self, body: Manifest) -> Manifest:
        self.version += 1
        stored = copy.deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.leases[stored["metadata"]["namespace"], stored["metadata"]["name"]] = stored
        return copy.deepcopy(stored)


def lease_of_version_before(namespace: str, holder: str, renewed: str) -> Manifest:
    """Operators before releases had Leases of their own set no label."""
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    meta = {"name": DEFAULT_LEASE, "namespace": namespace, "resourceVersion": "1"}
    return {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": meta, "spec": spec}
