"""The loop on real HTTP: it sees a burst at once, holds when it cannot read, and costs nothing while nothing happens.

Pods are servers on loopback addresses; each says what the test tells it to say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port
from prometheus_client import CollectorRegistry

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD
from phasewise_operator.queue import WorkQueue
from phasewise_operator.render.context import Images
from phasewise_operator.scaling.loop import Deps, Loop
from phasewise_operator.scaling.metrics import ScalingMetrics
from phasewise_operator.scaling.scrape import Scraper
from phasewise_operator.scaling.types import SizeDecision
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

KEY: Key = ("default", "chat")
DEADLINE = 12.0
ADDRESSES = {"router": "127.0.0.11", "prefill": "127.0.0.12", "decode": "127.0.0.13"}


@dataclass
class FakePod:
    """Answers as a router or an engine; `lines` are its samples, `status` what it answers with."""

    lines: dict[str, float] = field(default_factory=dict[str, float])
    status: int = 200
    pages: int = 0
    waits: int = 0
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

    async def page(self, _: web.Request) -> web.Response:
        self.pages += 1
        text = "".join(f"{name} {value}\n" for name, value in self.lines.items())
        return web.Response(text=text, status=self.status)

    async def wait(self, request: web.Request) -> web.Response:
        self.waits += 1
        await asyncio.wait_for(self.stirred.wait(), float(request.query["seconds"]))
        return web.Response(text=str(int(self.lines[contract.METRIC_ARRIVALS])))


ENGINE = {
    f'{name}{{engine="0"}}': 0.0
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
}
ROUTER = {
    contract.METRIC_ARRIVALS: 0.0,
    contract.METRIC_ACTIVE: 0.0,
    contract.METRIC_QUEUE_DEPTH: 0.0,
    **{f'{contract.METRIC_AWAITING}{{phase="{p}"}}': 0.0 for p in contract.WAIT_PHASES},
    **{f'{contract.METRIC_OVERDUE}{{phase="{p}"}}': 0.0 for p in contract.WAIT_PHASES},
}


@asynccontextmanager
async def serving(pod: FakePod, host: str, port: int) -> AsyncGenerator[None]:
    app = web.Application()
    app.router.add_get(contract.PATH_METRICS, pod.page)
    app.router.add_get(contract.PATH_ACTIVITY, pod.wait)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        yield
    finally:
        pod.stirred.set()
        await runner.cleanup()


def service(**scaling: Any) -> dict[str, Any]:
    pool = {"replicas": {"min": 1, "max": 4}}
    slo = {"ttft": "1s", "itl": "100ms"}
    spec = {"model": {"uri": "hf://o/m"}, "slo": slo, "prefill": pool, "decode": pool, "scaling": scaling}
    meta = {"namespace": "default", "name": "chat", "uid": "s", "generation": 1, "resourceVersion": "1"}
    return {"apiVersion": INFERENCE_SERVICE.api_version, "kind": "InferenceService", "metadata": meta, "spec": spec}


def child(name: str, role: str, **more: Any) -> dict[str, Any]:
    labels = {contract.LABEL_SERVICE: "chat", contract.LABEL_ROLE: role}
    owner = {"controller": True, "uid": "s"}
    meta = {"namespace": "default", "name": name, "uid": name, "resourceVersion": "1", "labels": labels}
    return {"metadata": {**meta, "ownerReferences": [owner], **more.pop("metadata", {})}, **more}


@dataclass
class Stage:
    loop: Loop
    store: Store
    queue: WorkQueue[Key]
    pods: dict[str, FakePod]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    pods = {"router": FakePod(dict(ROUTER)), "prefill": FakePod(dict(ENGINE)), "decode": FakePod(dict(ENGINE))}
    port, store, queue = unused_port(), Store(), WorkQueue[Key]()
    store.put(INFERENCE_SERVICE, service())
    for role, address in ADDRESSES.items():
        status = {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
        store.put(POD, child(f"{role}-0", role, status=status))
        sized = {"annotations": {contract.ANNOTATION_DESIRED: "1"}}
        store.put(DEPLOYMENT, child(f"chat-{role}", role, spec={"replicas": 1}, metadata=sized))
    scraper = Scraper(dict.fromkeys(ADDRESSES, port))
    images = Images("phasewise/runtime:1", "vllm/vllm-openai:1", "IfNotPresent")
    loop = Loop(Deps(store, queue, images, ScalingMetrics(CollectorRegistry()), scraper))
    async with AsyncExitStack() as stack:
        for role, address in ADDRESSES.items():
            await stack.enter_async_context(serving(pods[role], address, port))
        running = asyncio.create_task(loop.run())
        yield Stage(loop, store, queue, pods)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(what: str, probe: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not probe():
        assert time.monotonic() < deadline, f"{DEADLINE} s have passed without: {what}"
        await asyncio.sleep(0.02)


async def test_an_idle_service_is_waited_on_and_not_asked_again_and_again(stage: Stage) -> None:
    router = stage.pods["router"]
    await until("the loop waits on the router", lambda: router.waits > 0)
    seen = router.pages
    for _ in range(50):
        await asyncio.sleep(0)
    assert router.pages == seen


async def test_a_burst_on_an_idle_service_makes_prefill_grow_within_five_seconds(stage: Stage) -> None:
    router = stage.pods["router"]
    await until("the loop waits on the router", lambda: router.waits > 0)
    stage.queue.done(await stage.queue.get())
    began = time.monotonic()
    router.lines |= {
        contract.METRIC_ARRIVALS: 40.0,
        contract.METRIC_ACTIVE: 40.0,
        f'{contract.METRIC_AWAITING}{{phase="prefill"}}': 40.0,
        f'{contract.METRIC_OVERDUE}{{phase="prefill"}}': 38.0,
        f'{contract.METRIC_POD_REQUESTS}{{pod="prefill-0",role="prefill"}}': 2.0,
        f'{contract.METRIC_POD_BUSY_SECONDS}{{pod="prefill-0",role="prefill"}}': 2.0,
        f'{contract.METRIC_POD_INFLIGHT_SECONDS}{{pod="prefill-0",role="prefill"}}': 60.0,
    }
    router.stirred.set()
    await until("prefill is to grow", lambda: stage.loop.recommendation(KEY, "s").decisions["prefill"].desired > 1)
    assert time.monotonic() - began < 5
    assert await asyncio.wait_for(stage.queue.get(), 1) == KEY, "the reconciler is woken"


async def test_what_cannot_be_read_is_held_and_said(stage: Stage) -> None:
    stage.pods["prefill"].status = 500

    def decision() -> SizeDecision | None:
        return stage.loop.recommendation(KEY, "s").decisions.get("prefill")

    await until("it is said", lambda: (now := decision()) and now.reason == "Unreadable")
    now = decision()
    assert now
    assert (now.desired, now.known) == (1, False)


async def test_a_service_that_is_deleted_is_followed_no_longer(stage: Stage) -> None:
    await until("a first round", lambda: stage.loop.recommendation(KEY, "s").signals is not None)
    stage.store.drop(INFERENCE_SERVICE, service())
    await until("nothing is said of it", lambda: stage.loop.recommendation(KEY, "s").signals is None)


@pytest.mark.parametrize("mode", ["Manual", "External"])
async def test_where_others_decide_it_measures_and_says_nothing(mode: str, stage: Stage) -> None:
    live = service(mode=mode)
    live["metadata"]["resourceVersion"] = "2"
    stage.store.put(INFERENCE_SERVICE, live)
    seen = stage.pods["router"].pages
    await until("another round", lambda: stage.pods["router"].pages > seen + 1)
    await until("nothing is said of sizes", lambda: stage.loop.recommendation(KEY, "s").decisions == {})
    assert stage.loop.recommendation(KEY, "s").signals is not None
