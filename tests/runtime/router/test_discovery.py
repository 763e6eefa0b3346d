"""Discovery against a small API server on loopback that lists and watches, and fails as real ones do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.runtime.router.conftest import SETTINGS
from tests.runtime.waiting import until

from phasewise_runtime.contract import LABEL_FINGERPRINT, LABEL_ROLE
from phasewise_runtime.router import discovery
from phasewise_runtime.router.discovery import ApiServer, Discovery
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pod_registry import PodRegistry


def pod(name: str, role: str = "decode", *, ready: bool = True, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "labels": {LABEL_ROLE: role, LABEL_FINGERPRINT: "fp"}, **meta},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


@dataclass
class FakeApi:
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 10
    lists: int = 0
    queries: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    watchers: list[asyncio.Queue[dict[str, Any] | None]] = field(default_factory=list)
    watch_status: int = 200
    list_status: int = 200
    port: int = 0
    runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/default/pods", self._pods)
        self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        if self.runner:
            runner, self.runner = self.runner, None
            await runner.cleanup()

    def apply(self, value: dict[str, Any]) -> None:
        name = value["metadata"]["name"]
        kind = "MODIFIED" if name in self.pods else "ADDED"
        self.pods[name] = value
        self.tell(kind, value)

    def delete(self, name: str) -> None:
        self.tell("DELETED", self.pods.pop(name))

    def tell(self, kind: str, value: dict[str, Any]) -> None:
        self.version += 1
        value = json.loads(json.dumps(value))
        value.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        self.send({"type": kind, "object": value})

    def send(self, event: dict[str, Any] | None) -> None:
        for queue in self.watchers:
            queue.put_nowait(event)

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization"))
        if "watch" not in request.query:
            self.lists += 1
            items = list(self.pods.values())
            body = {"metadata": {"resourceVersion": str(self.version)}, "items": items}
            return web.json_response(body, status=self.list_status)
        if self.watch_status != 200:
            status, self.watch_status = self.watch_status, 200
            return web.json_response({"kind": "Status", "code": status}, status=status)
        return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        response = web.StreamResponse()
        await response.prepare(request)
        self.watchers.append(queue)
        try:
            while (event := await queue.get()) is not None:
                raw = json.dumps(event).encode() + b"\n"
                await response.write(raw[:7])
                await response.write(raw[7:])
        finally:
            self.watchers.remove(queue)
        return response


@dataclass
class Watching:
    api: FakeApi
    pod_registry: PodRegistry
    metrics: Metrics

    def names(self, role: str = "decode") -> list[str]:
        return sorted(c.pod.name for c in self.pod_registry.candidates(role))

    def up(self) -> float | None:
        return self.metrics.registry.get_sample_value("phasewise_router_discovery_up")

    async def sees(self, *names: str) -> None:
        await until(lambda: self.names() == list(names))


@asynccontextmanager
async def watching(*pods: dict[str, Any], server: dict[str, Any] | None = None) -> AsyncGenerator[Watching, None]:
    api = FakeApi({p["metadata"]["name"]: p for p in pods})
    await api.start()
    metrics = Metrics()
    pod_registry = PodRegistry(metrics, lambda: 0.0)
    found = Discovery(replace(SETTINGS, service="s v"), pod_registry, metrics, ApiServer(api.url, **(server or {})))
    task = asyncio.create_task(found.run())
    try:
        await until(lambda: api.watchers)
        yield Watching(api, pod_registry, metrics)
        assert not task.done(), task
    finally:
        task.cancel()
        await api.stop()


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_BACKOFF", 0.01)


async def test_pods_are_listed_and_watched() -> None:
    async with watching(pod("d0"), pod("p0", "prefill"), pod("r0", "router")) as w:
        assert w.pod_registry.synced
        assert (w.names(), w.names("prefill")) == (["d0"], ["p0"])
        w.api.apply(pod("d1", ready=False))
        w.api.apply(pod("d1"))
        await w.sees("d0", "d1")
        w.api.apply(pod("d1", ready=False))
        await w.sees("d0")
        assert w.api.queries[0] == {"labelSelector": "phasewise.dev/service=s v"}
        assert w.api.queries[1]["resourceVersion"] == "10"
        assert w.api.lists == 1


async def test_a_pod_leaves_at_its_deletion_timestamp() -> None:
    async with watching(pod("d0"), pod("d1")) as w:
        w.api.apply(pod("d0", deletionTimestamp="2026-01-01T00:00:00Z"))
        await w.sees("d1")


async def test_a_pod_may_be_deleted_without_having_been_seen_terminating() -> None:
    async with watching(pod("d0"), pod("d1")) as w:
        w.api.delete("d0")
        await w.sees("d1")


async def test_bookmarks_and_watches_that_end_need_no_new_list() -> None:
    async with watching(pod("d0")) as w:
        w.api.tell("BOOKMARK", {"kind": "Pod"})
        w.api.send(None)
        await until(lambda: len(w.api.queries) == 3)
        assert w.api.queries[-1]["resourceVersion"] == "11"
        await until(lambda: w.api.watchers)
        w.api.apply(pod("d1"))
        await w.sees("d0", "d1")
        assert w.api.lists == 1


@pytest.mark.parametrize("how", ["event", "status"])
async def test_after_410_a_new_list_finds_the_missed_changes(how: str) -> None:
    async with watching(pod("d0"), pod("d1")) as w:
        del w.api.pods["d0"]
        w.api.pods["d2"] = pod("d2")
        if how == "event":
            w.api.send({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})
        else:
            w.api.watch_status = 410
            w.api.send(None)
        await w.sees("d1", "d2")
        assert w.api.lists == 2


@pytest.mark.parametrize("how", ["error event", "forbidden"])
async def test_other_watch_errors_end_in_a_new_list_too(how: str) -> None:
    async with watching(pod("d0")) as w:
        w.api.pods["d1"] = pod("d1")
        if how == "forbidden":
            w.api.watch_status = 403
            w.api.send(None)
        else:
            w.api.send({"type": "ERROR", "object": {"code": 500, "message": "m"}})
        await w.sees("d0", "d1")


async def test_while_the_api_server_is_away_the_last_known_pods_serve() -> None:
    async with watching(pod("d0"), pod("d1")) as w:
        await w.api.stop()
        await until(lambda: w.up() == 0)
        assert w.names() == ["d0", "d1"]
        assert w.pod_registry.synced
        del w.api.pods["d0"]
        await w.api.start()
        await w.sees("d1")
        assert w.up() == 1


async def test_a_dead_watch_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "WATCH_SECONDS", 0)
    monkeypatch.setattr(discovery, "GRACE_SECONDS", 0.05)
    async with watching(pod("d0")) as w:
        w.api.pods["d1"] = pod("d1")  # without an event
        await w.sees("d0", "d1")


async def test_the_token_is_read_anew_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    async with watching(pod("d0"), server={"token_file": token}) as w:
        token.write_text("two\n")
        w.api.send(None)
        await until(lambda: len(w.api.tokens) == 3)
        assert w.api.tokens == ["Bearer one", "Bearer one", "Bearer two"]


async def test_the_ca_is_read_anew_for_each_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, read = tmp_path / "ca.crt", list[str]()

    def context(cafile: str) -> bool:
        read.append(Path(cafile).read_text())
        return True

    monkeypatch.setattr(discovery.ssl, "create_default_context", context)
    ca.write_text("one")
    async with watching(pod("d0"), server={"ca_file": ca}) as w:
        ca.write_text("two")
        w.api.send(None)
        await until(lambda: w.api.lists and read[-1] == "two")


async def test_an_unreadable_token_is_tried_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    async with watching(pod("d0"), server={"token_file": token}) as w:
        token.unlink()
        w.api.send(None)
        await until(lambda: w.up() == 0)
        token.write_text("two")
        await until(lambda: w.api.tokens[-1] == "Bearer two")


def test_in_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert discovery.in_cluster().url == "https://[fd00::1]:6443"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(RuntimeError, match="--static-pods"):
        discovery.in_cluster()
