"""The load that a router exports: arrivals, pending requests by phase, and the requests of each pod."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import FakeEngine, pair
from tests.runtime.router.signals import EASY, SHORT, awaiting, judged, leave, overdue, served
from tests.runtime.waiting import until

from phasewise_runtime import contract
from phasewise_runtime.contract import SLO_TTFT_MISSED


# --- arrivals and waiting ------------------------------------------------------------------------------------
async def test_requests_arrive_before_they_wait_for_anything(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d, **EASY) as r:
        r.server.pod_registry.replace_all([])
        tasks = [asyncio.create_task(r.chat()) for _ in range(3)]
        await until(lambda: awaiting(r) == {"queue": 3})
        assert r.metric("arrivals_total") == 3
        assert overdue(r) == {}
        r.server.pod_registry.replace_all([p.pod(), d.pod()])
        await asyncio.gather(*tasks)
        assert awaiting(r) == {}
        assert r.metric("arrivals_total") == 3


async def test_a_request_waits_for_prefill_then_for_decode_then_no_more(router: RouterFactory) -> None:
    p, d = pair()
    for gate in (p.first_gate, d.first_gate, d.gate):
        gate.clear()
    async with router(p, d) as r:
        task = asyncio.create_task(r.chat(stream=True))
        await until(lambda: awaiting(r) == {"prefill": 1})
        p.first_gate.set()
        await until(lambda: awaiting(r) == {"decode": 1})
        assert overdue(r) == {}, "there is no target"
        d.first_gate.set()
        await until(lambda: r.metric("ttft_seconds_count") == 1)
        assert awaiting(r) == {}
        assert r.metric("active_requests") == 1
        d.gate.set()
        await task


async def test_a_retried_request_is_pending_in_the_phase_it_went_back_to(router: RouterFactory) -> None:
    p, d0, d1 = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0"), FakeEngine("decode", "d1")
    for d in (d0, d1):
        d.first_gate.clear()
    async with router(p, d0, d1, ttft_target_seconds=1e-6) as r:
        task = asyncio.create_task(r.chat(stream=True))
        await until(lambda: d0.requests + d1.requests)
        assert awaiting(r) == {"decode": 1}
        p.first_gate.clear()
        await delete(r, d0 if d0.requests else d1)
        await until(lambda: awaiting(r) == {"prefill": 1})
        assert overdue(r) == {"prefill": 1}
        for e in (p, d0, d1):
            e.first_gate.set()
        assert (await task).status == 200


@pytest.mark.usefixtures("fast_probes")
async def test_a_request_whose_last_decode_pod_died_is_back_in_the_queue(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    d.first_gate.clear()
    async with router(d) as r:
        port, task = d.port, asyncio.create_task(r.chat(stream=True))
        await until(lambda: d.requests)
        assert awaiting(r) == {"decode": 1}
        await d.kill()
        await until(lambda: awaiting(r) == {"queue": 1})
        d.port = port
        d.first_gate.set()
        await d.start()
        assert (await task).status == 200


async def test_an_assembled_answer_is_pending_again_when_its_stream_breaks(router: RouterFactory) -> None:
    """Its client has seen no token yet."""
    p, d0, d1 = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0"), FakeEngine("decode", "d1")
    for d in (d0, d1):
        d.gate.clear()
    async with router(p, d0, d1, ttft_target_seconds=SHORT) as r:
        task = asyncio.create_task(r.chat())
        await until(lambda: d0.requests + d1.requests and awaiting(r) == {})
        p.first_gate.clear()
        await delete(r, d0 if d0.requests else d1)
        await until(lambda: overdue(r) == {"prefill": 1})
        await leave(task, r)
        assert await judged(r) == {SLO_TTFT_MISSED: 1}


async def delete(r: Any, engine: FakeEngine) -> None:
    """As a pod that is deleted: its request goes to another pair. After a crash it would be decode-only."""
    r.server.pod_registry.put(engine.pod(terminating=True))
    await engine.kill()


# --- requests of pods ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"logprobs": True}])
async def test_an_answer_counts_as_served_at_both_pods(router: RouterFactory, fields: dict[str, Any]) -> None:
    async with router(*pair()) as r:
        assert (await r.chat(**fields)).status == 200
        await until(lambda: r.metric("inflight_requests") == 0)
        assert served(r) == {"p0": 1, "d0": 1}
        for e in r.engines:
            assert r.metric("pod_inflight_seconds_total", role=e.role, pod=e.name) > 0
            assert r.metric("pod_busy_seconds_total", role=e.role, pod=e.name) > 0


@pytest.mark.parametrize(
    ("role", "fault", "stream", "counts"),
    [
        ("decode", "500", True, {"p0": 2, "d0": 1}),
        ("decode", "die", True, {"p0": 1, "d0": 0}),
        ("decode", "die", False, {"p0": 2, "d0": 1}),
        ("decode", "400", True, {"p0": 1, "d0": 0}),
        ("prefill", "500", True, {"p0": 0, "d0": 1}),
        ("prefill", "abort", True, {"p0": 0, "d0": 1}),
        ("prefill", "400", True, {"p0": 0, "d0": 1}),
        ("prefill", "no_kv", True, {"p0": 1, "d0": 1}),
    ],
)
@pytest.mark.usefixtures("fast_probes")
async def test_failed_and_refused_requests_do_not_count_as_served(
    router: RouterFactory, role: str, fault: str, stream: bool, counts: dict[str, float]
) -> None:
    p, d = pair()
    (p if role == "prefill" else d).faults.append(fault)
    async with router(p, d) as r:
        await r.chat(stream=stream)
        await until(lambda: r.metric("inflight_requests") == 0)
        assert served(r) == counts


async def test_busy_time_grows_on_each_pod_while_its_request_runs(router: RouterFactory) -> None:
    p, d = pair()
    p.first_gate.clear()
    d.gate.clear()
    async with router(p, d) as r:
        task = asyncio.create_task(r.chat(stream=True))
        for e, gate in ((p, p.first_gate), (d, d.gate)):
            await until(lambda e=e: r.metric("pod_busy_seconds_total", role=e.role, pod=e.name) > SHORT)
            gate.set()
        await task


# --- the page ------------------------------------------------------------------------------------------------
async def test_every_metric_of_the_contract_is_exported(router: RouterFactory) -> None:
    names = [v for k, v in vars(contract).items() if k.startswith("METRIC_") and v.startswith("phasewise_router_")]
    assert len(names) >= 13
    async with router(*pair(), **EASY) as r:
        await r.chat(stream=True)
        page = (await r.admin(contract.PATH_METRICS)).text
    for result in contract.SLO_RESULTS:
        assert f'{contract.METRIC_SLO_REQUESTS}{{result="{result}"}}' in page, "from the first page on"
    exported = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    assert [n for n in names if n not in exported] == []
