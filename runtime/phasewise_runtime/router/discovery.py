"""Lists and watches the engine pods on the API server. The only module that talks to it.

A list replaces everything known, so no missed event lasts; a watch then brings the changes, also of a pod that is
deleted without having been seen terminating. Each watch ends after a minute and a silent one is
given up soon after, so a dead connection goes unnoticed no longer than that. While the API server is away the last
known pods stay, and failing requests show which of them no longer serve.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aiohttp

from phasewise_runtime.contract import LABEL_SERVICE
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import pod_from_api
from phasewise_runtime.router.settings import Settings

log = logging.getLogger(__name__)

Json = dict[str, Any]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_SECONDS = 60
GRACE_SECONDS = 15
"""A watch that says nothing for this long after it should have ended is dead."""
LIST_SECONDS = 20.0
MAX_BACKOFF = 10.0
MAX_LINE = 4 * 1024 * 1024


class RelistError(Exception):
    """The watch cannot go on from where it was (410 Gone): list again."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address and credentials of the API server."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def headers(self) -> dict[str, str]:
        # Read each time: the kubelet renews the token.
        token = self.token_file.read_text().strip() if self.token_file else ""
        return {"Authorization": f"Bearer {token}"} if token else {}

    def ssl(self) -> ssl.SSLContext | bool:
        return ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file else True


def in_cluster() -> ApiServer:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise RuntimeError("not in a cluster: run in a pod, or give --static-pods")
    return ApiServer(f"https://{f'[{host}]' if ':' in host else host}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")


class Discovery:
    def __init__(
        self, settings: Settings, pod_registry: PodRegistry, metrics: Metrics, server: ApiServer | None = None
    ) -> None:
        self._server = server or in_cluster()
        selector = quote(f"{LABEL_SERVICE}={settings.service}")
        self._path = f"/api/v1/namespaces/{quote(settings.namespace)}/pods?labelSelector={selector}"
        self._pod_registry = pod_registry
        self._metrics = metrics
        self._version = ""
        self._failures = 0

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                # A new one for each watch: the API server's CA may have been renewed.
                connector = aiohttp.TCPConnector(ssl=self._server.ssl())
                async with aiohttp.ClientSession(connector=connector) as session:
                    await self._follow(session)
            except RelistError:
                self._version = ""
                self._metrics.discovery_errors.labels("gone").inc()
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as e:
                await self._back_off(e)

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        """List where needed, then watch once."""
        if not self._version:
            await self._list(session)
            self._up()
        url = f"{self._server.url}{self._path}&watch=true&allowWatchBookmarks=true"
        url += f"&resourceVersion={quote(self._version)}&timeoutSeconds={WATCH_SECONDS}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=WATCH_SECONDS + GRACE_SECONDS)
        async with session.get(url, headers=self._server.headers(), timeout=timeout) as response:
            if response.status == 410:
                raise RelistError
            response.raise_for_status()
            self._up()
            async for line in _lines(response.content):
                self._event(json.loads(line))

    async def _list(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=LIST_SECONDS, sock_connect=5)
        url = self._server.url + self._path
        async with session.get(url, headers=self._server.headers(), timeout=timeout) as response:
            response.raise_for_status()
            body: Json = await response.json()
        self._pod_registry.replace_all(pod for item in body.get("items") or () if (pod := pod_from_api(item)))
        self._version = str(body["metadata"]["resourceVersion"])

    def _event(self, event: Json) -> None:
        kind = event.get("type")
        raw = cast("Json", event.get("object") or {})
        if kind == "ERROR":
            if raw.get("code") == 410:
                raise RelistError
            raise ValueError(f"the watch ended with an error: {raw.get('reason')} {raw.get('message')}")
        meta = cast("Json", raw.get("metadata") or {})
        self._version = str(meta.get("resourceVersion") or self._version)
        if kind == "DELETED":
            self._pod_registry.remove(str(meta.get("uid", "")))
        elif kind in ("ADDED", "MODIFIED") and (pod := pod_from_api(raw)):
            self._pod_registry.put(pod)

    def _up(self) -> None:
        if self._failures:
            log.warning("the API server answers again", extra={"failures": self._failures})
        self._failures = 0
        self._metrics.discovery_up.set(1)

    async def _back_off(self, error: Exception) -> None:
        # List again after any failure: it is cheap, and right even if the API server lost its history.
        self._version = ""
        self._failures += 1
        self._metrics.discovery_up.set(0)
        self._metrics.discovery_errors.labels(type(error).__name__).inc()
        if self._failures == 1:
            log.warning("pods cannot be watched; the last known stay in use", extra={"detail": str(error)})
        await asyncio.sleep(min(MAX_BACKOFF, 0.25 * 2 ** min(self._failures, 8)))


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length up to MAX_LINE; the reader's own readline stops at its buffer's size."""
    buffer = b""
    async for chunk in content.iter_any():
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(buffer) > MAX_LINE:
            raise ValueError("a watch event is longer than 4 MiB")
