"""How requests get past dead connections, and how ejected pods come back."""

from __future__ import annotations

import asyncio

import pytest
from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import FakeEngine
from tests.runtime.router.faults import complete, four, many, once
from tests.runtime.waiting import until

from phasewise_runtime.contract import PREFILL


# --- connections ---------------------------------------------------------------------------------------------
async def test_an_idle_connection_that_the_engine_closed_fails_nothing_and_blames_nobody(router: RouterFactory) -> None:
    """As after a restart behind the same address: every kept connection is dead, the pod is fine."""
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    async with router(p, d) as r:
        assert complete(await r.chat())
        for e in (p, d):
            e.faults.append("drop")  # the reused connection breaks before an answer
        assert complete(await r.chat(stream=True))
        assert r.metric("ejections_total") == 0
        assert r.metric("decode_only_total") == 0
        assert r.metric("retries_total", role="decode", reason="stale_connection") == 1
        assert r.metric("retries_total", role="prefill", reason="stale_connection") == 1
    assert once((p, d))


async def test_a_pod_whose_connections_all_break_is_not_asked_for_ever(router: RouterFactory) -> None:
    engines = four()
    async with router(*engines) as r:
        for e in engines:
            e.first_gate.clear()
        tasks = [asyncio.create_task(r.chat()) for _ in range(20)]
        for e in engines[:2]:
            await until(lambda e=e: len(e.requests) == 10)
        for e in engines:
            e.first_gate.set()
        assert all([complete(await t) for t in tasks])  # so there are many idle connections to each pod
        engines[0].always = engines[2].always = "drop"
        assert all(complete(reply) for reply in await many(r, 8))


# --- coming back ---------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("fast_probes")
async def test_an_ejected_pod_gets_one_half_open_request_after_its_probe(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    async with router(p, d) as r:
        port = p.port
        await p.kill()
        assert complete(await r.chat())
        assert r.metric("pods", role=PREFILL, state="ejected") == 1
        p.port, p.requests = port, []
        await p.start()
        await until(lambda: r.metric("pods", role=PREFILL, state="ejected") == 0)
        assert complete(await r.chat())
        assert len(p.requests) == 1


@pytest.mark.usefixtures("fast_probes")
async def test_a_request_waits_for_the_only_decode_pod_to_come_back(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    async with router(d) as r:
        port = d.port
        await d.kill()
        task = asyncio.create_task(r.chat())
        await until(lambda: r.metric("ejections_total", pod="d0") == 1)
        d.port = port
        await d.start()
        assert complete(await task)
