"""A running router before fake engines, for the tests of its behaviour."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from tests.runtime.router.fake_engine import MODEL, FakeEngine, engines
from tests.runtime.waiting import until

from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.server import Server
from phasewise_runtime.router.settings import Settings

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "hi"}
SETTINGS = Settings(
    service="svc",
    namespace="default",
    model_name=MODEL,
    host="127.0.0.1",
    port=0,
    admin_port=0,
    hold_seconds=5.0,
    settle_seconds=0.0,
)


@dataclass
class Reply:
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.text)

    @property
    def events(self) -> list[str]:
        return [e.removeprefix("data: ") for e in self.text.split("\n\n") if e.startswith("data: ")]

    @property
    def content(self) -> str:
        """The text of a stream or of an answer that does not stream."""
        if not self.text.startswith("data:"):
            choice = self.json["choices"][0]
            return choice["text"] if "text" in choice else choice["message"]["content"]
        parsed = [json.loads(e) for e in self.events if e != "[DONE]"]
        choices = [c for e in parsed for c in e.get("choices", ())]
        return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)


@dataclass
class Router:
    """A router under test, and a client of it."""

    server: Server
    session: aiohttp.ClientSession
    engines: tuple[FakeEngine, ...]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def post(self, path: str, body: Any, **kwargs: Any) -> Reply:
        async with self.session.post(f"{self.url}{path}", json=body, **kwargs) as response:
            return Reply(response.status, response.headers, await response.text())

    async def get(self, path: str, **kwargs: Any) -> Reply:
        async with self.session.get(f"{self.url}{path}", **kwargs) as response:
            return Reply(response.status, response.headers, await response.text())

    async def chat(self, **fields: Any) -> Reply:
        return await self.post("/v1/chat/completions", {**CHAT, **fields})

    async def complete(self, **fields: Any) -> Reply:
        return await self.post("/v1/completions", {**COMPLETION, **fields})

    async def admin(self, path: str) -> Reply:
        async with self.session.get(f"http://127.0.0.1:{self.server.admin_port}{path}") as response:
            return Reply(response.status, response.headers, await response.text())

    def metric(self, name: str, **labels: str) -> float:
        """A sample, 0 where it does not exist; labels that are not given are summed over."""
        total = 0.0
        for family in self.server.metrics.registry.collect():
            for sample in family.samples:
                fits = all(sample.labels.get(k) == v for k, v in labels.items())
                if sample.name == f"phasewise_router_{name}" and fits:
                    total += sample.value
        return total


RouterFactory = Callable[..., Any]


@asynccontextmanager
async def running_router(*wanted: FakeEngine, proved: bool = True, **changes: Any) -> AsyncGenerator[Router, None]:
    """A router that knows the engines given; the engines run, and unless `proved` is false, KV is known to flow."""

    async def source(pod_registry: PodRegistry) -> None:
        pod_registry.replace_all(e.pod() for e in wanted)
        await asyncio.Event().wait()

    async with (
        engines(*wanted),
        Server(replace(SETTINGS, **changes), source) as server,
        aiohttp.ClientSession() as session,
    ):
        await until(lambda: server.pod_registry.synced)
        if proved:
            await until(lambda: all(is_proved(server, e) for e in wanted if e.runner))
        yield Router(server, session, wanted)


def is_proved(server: Server, engine: FakeEngine) -> bool:
    """Canaries have tried it with all its peers: nothing is left that could change."""
    kv, pod = server.pod_registry.kv, engine.pod()
    state = kv.pods.get(pod.uid)
    return state is not None and kv.peers(pod) <= state.tried and (state.warm or pod.role == "prefill")


@pytest.fixture(autouse=True)
def canaries_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasewise_runtime.router.kv_schedule.BACKGROUND_SECONDS", 0.0)


@pytest.fixture
def router() -> RouterFactory:
    return running_router


@pytest.fixture
def fast_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ejected pod is probed soon, not after a back-off of seconds."""
    monkeypatch.setattr("phasewise_runtime.router.breaker.FIRST_BACKOFF", 0.05)
    monkeypatch.setattr("phasewise_runtime.router.health.INTERVAL", 0.01)


@pytest.fixture
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_generation_seconds` may be less than a second."""
    monkeypatch.setattr("phasewise_runtime.router.pd_request.MIN_SECONDS_LEFT", 0.01)


CANARY = "phasewise_runtime.router.canary"
REGISTRY = "phasewise_runtime.router.kv_registry"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes 10 s in production takes two here."""
    for name, value in {
        f"{CANARY}.INTERVAL": 0.02,
        f"{CANARY}.AGAIN_SECONDS": 1.0,
        f"{CANARY}.FIRST_SECONDS": 1.5,
        f"{CANARY}.SLOWER": 1.0,
        f"{CANARY}.HEALTH_SECONDS": 0.3,
        f"{CANARY}.STEP_SECONDS": 0.1,
        f"{CANARY}.POLL_SECONDS": 0.1,
        f"{CANARY}.COUNTED_SECONDS": 0.05,
        f"{REGISTRY}.SUSPECT_SECONDS": 0.3,
        f"{REGISTRY}.PROOF_SECONDS": 0.3,
    }.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
def no_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed path stays failed for the length of the test."""
    monkeypatch.setattr("phasewise_runtime.router.kv_paths.FIRST_BACKOFF", 30.0)
