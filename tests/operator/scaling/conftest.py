"""A scaling loop that runs, and rounds that are quick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from aiohttp.test_utils import unused_port
from prometheus_client import CollectorRegistry
from tests.operator.scaling.fake_pods import ENGINE, ROUTER, FakePod, serving
from tests.operator.scaling.loop_stage import ADDRESSES, Stage, child, service

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD
from phasewise_operator.queue import WorkQueue
from phasewise_operator.render.context import Images
from phasewise_operator.scaling import idle, loop
from phasewise_operator.scaling.loop import Deps, Loop
from phasewise_operator.scaling.metrics import ScalingMetrics
from phasewise_operator.scaling.policy import data_quality
from phasewise_operator.scaling.scrape import Scraper
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 20 ms, for tests that say nothing of how long a round takes."""
    for module, name in (
        (loop, "ROUND_SECONDS"),
        (loop, "LEAST_SECONDS"),
        (idle, "LEAST_SECONDS"),
        (idle, "IDLE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(data_quality, "MIN_WINDOW", 0.01)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    pods = {role: FakePod(dict(ROUTER if role == "router" else ENGINE)) for role in ADDRESSES}
    port, store, queue = unused_port(), Store(), WorkQueue[Key]()
    store.put(INFERENCE_SERVICE, service())
    for role, address in ADDRESSES.items():
        status = {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
        store.put(POD, child(f"{role}-0", role, status=status))
        sized = {"annotations": {contract.ANNOTATION_DESIRED: "1"}}
        store.put(DEPLOYMENT, child(f"chat-{role}", role, spec={"replicas": 1}, metadata=sized))
    scraper = Scraper(dict.fromkeys(ADDRESSES, port))
    images = Images("phasewise/runtime:1", "vllm/vllm-openai:1", "IfNotPresent")
    scaling = Loop(Deps(store, queue, images, ScalingMetrics(CollectorRegistry()), scraper))
    async with AsyncExitStack() as stack:
        for role, address in ADDRESSES.items():
            await stack.enter_async_context(serving(pods[role], address, port))
        running = asyncio.create_task(scaling.run())
        yield Stage(scaling, store, queue, pods)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
