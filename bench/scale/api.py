"""The API server as the scale tests see it: as an administrator, who is not throttled, by a client of their own."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from e2e.cluster import configuration

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, Kind

Object = dict[str, Any]
NAMESPACE = "default"
"""Of all services and pods."""
AT_ONCE = 8
"""Objects that are being created at the same time."""
MERGE = "application/merge-patch+json"
TOO_EARLY = 429
"""Too many requests, or a CRD that was only just made is not served yet."""
LINE_BYTES = 2**22
"""The longest line of a watch: an object."""


class Api:
    """`async with Api(pki) as api`, in the control plane's network namespace."""

    def __init__(self, pki: Path) -> None:
        self._pki = pki

    async def __aenter__(self) -> Self:
        trust = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        trust.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        self._session = aiohttp.ClientSession(
            configuration.api_server_inside(),
            connector=aiohttp.TCPConnector(ssl=trust, limit=2 * AT_ONCE),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=LINE_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Object | None = None, media: str = "application/json") -> Object:
        data = None if body is None else json.dumps(body)
        while True:
            async with self._session.request(method, path, data=data, headers={"Content-Type": media}) as answer:
                found: Object = await answer.json()
            if answer.status == TOO_EARLY and "Retry-After" in answer.headers:
                await asyncio.sleep(int(answer.headers["Retry-After"]))
            elif answer.status >= 400:
                raise SystemExit(f"{method} {path}: {found.get('message')}")
            else:
                return found

    async def create_all(self, kind: Kind, manifests: Iterable[Object]) -> None:
        """AT_ONCE at a time."""
        waiting = iter(manifests)

        async def create() -> None:
            for manifest in waiting:
                await self.call("POST", kind.path(NAMESPACE), manifest)

        await asyncio.gather(*(create() for _ in range(AT_ONCE)))

    async def names(self, kind: Kind) -> list[str]:
        found = await self.call("GET", f"{kind.path(NAMESPACE)}?resourceVersion=0")
        return [item["metadata"]["name"] for item in found["items"]]

    async def watch(self, kind: Kind, selector: str = "") -> AsyncIterator[Object]:
        """All objects that are there, and each that changes."""
        async with self._session.get(f"{kind.path(NAMESPACE)}?watch=1&{selector}") as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    yield event["object"]

    async def wait_for(self, kind: Kind, name: str, holds: Callable[[Object], bool], seconds: float) -> None:
        """Until an object is as it should be. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            async for found in self.watch(kind, f"fieldSelector=metadata.name={name}"):
                if holds(found):
                    return

    async def all_ready(self, count: int, seconds: float) -> None:
        """Until so many services are Ready. Raises TimeoutError."""
        ready: set[str] = set()
        async with asyncio.timeout(seconds):
            async for service in self.watch(INFERENCE_SERVICE):
                known = service.get("status", {}).get("conditions", [])
                if any(c["type"] == "Ready" and c["status"] == "True" for c in known):
                    ready.add(service["metadata"]["name"])
                if len(ready) >= count:
                    return

    async def change_routers(self, name: str, count: int) -> None:
        body = {"spec": {"router": {"replicas": count}}}
        await self.call("PATCH", INFERENCE_SERVICE.path(NAMESPACE, name), body, MERGE)

    async def routers_are(self, name: str, count: int, seconds: float) -> None:
        """Until the operator has carried out such a change. Raises TimeoutError."""
        await self.wait_for(DEPLOYMENT, f"{name}-router", lambda d: d["spec"]["replicas"] == count, seconds)

    async def pods_run(self, count: int, seconds: float) -> None:
        running: set[str] = set()
        async with asyncio.timeout(seconds):
            async for pod in self.watch(POD):
                if pod.get("status", {}).get("phase") == "Running":
                    running.add(pod["metadata"]["name"])
                if len(running) >= count:
                    return
