"""KV paths that were proved and go bad under traffic: that is found out, and requests are served round them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import pair
from tests.runtime.router.faults import complete, failed, four, many, state
from tests.runtime.waiting import until

from phasewise_runtime.router import kv_paths as kp


@pytest.mark.usefixtures("short", "no_retry")
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"logprobs": True}])
async def test_requests_on_a_transfer_that_hangs_end_and_are_served_by_another_path(
    router: RouterFactory, fields: dict[str, Any]
) -> None:
    engines = four()
    async with router(*engines, max_concurrency=64) as r:
        engines[2].kv.bad_peers["p0"] = "hang"
        replies = await asyncio.gather(*(r.chat(**fields) for _ in range(12)))
        assert all(reply.status == 200 for reply in replies)
        assert r.metric("kv_failed_path", prefill="p0", decode="d0", reason=kp.TRANSFER_TIMEOUT) == 1
        assert state(r, "failed") == 1, "the other paths of both pods are not to blame"
        assert r.metric("retries_total", reason="kv_path_failed") >= 1
        assert r.metric("ejections_total") == 0
        assert r.metric("decode_only_total") == 0


@pytest.mark.usefixtures("short", "no_retry")
async def test_a_prefill_engine_that_stops_is_gone_round(router: RouterFactory) -> None:
    engines = four()
    async with router(*engines) as r:
        engines[0].stopped = True
        replies = await asyncio.gather(*(r.chat(stream=True) for _ in range(8)))
        assert all(complete(reply) for reply in replies)
        assert r.metric("kv_failed_path", prefill="p0", reason=kp.PREFILL_TIMEOUT) == 2, "with both decode pods"
        assert r.metric("kv_transfer_ok", pod="p0") == 0
        assert r.metric("kv_transfer_ok", pod="p1") == 1


@pytest.mark.usefixtures("short", "no_retry")
@pytest.mark.parametrize("steps", [False, True])
async def test_a_prefill_engine_without_a_step_is_stopped_and_one_that_makes_steps_is_slow(
    router: RouterFactory, steps: bool
) -> None:
    """Its server answers health checks either way."""
    p, d = pair()
    async with router(p, d) as r:
        p.first_gate.clear()
        p.kv.fault = "slow" if steps else "hang"
        task = asyncio.create_task(r.chat(stream=True))
        if steps:
            await until(lambda: r.metric("kv_canaries_total", result="no_result") >= 1)
            assert state(r, "proved") == 1
            p.first_gate.set()
        assert complete(await task)
        assert r.metric("kv_failed_path", reason=kp.PREFILL_TIMEOUT) == (not steps)


@pytest.mark.usefixtures("short", "no_retry")
async def test_an_overloaded_decode_engine_fails_no_path(router: RouterFactory) -> None:
    """Its canaries are as slow as its requests, with KV and without."""
    p, d = pair()
    async with router(p, d) as r:
        d.first_gate.clear()
        d.kv.gate.clear()
        task = asyncio.create_task(r.chat(stream=True))
        await until(lambda: r.metric("kv_canaries_total", result="no_result") >= 1)
        d.first_gate.set()
        d.kv.gate.set()
        assert complete(await task)
        assert state(r, "proved") == 1
        assert r.metric("retries_total") == 0


@pytest.mark.usefixtures("short", "no_retry")
async def test_silent_recompute_is_found_by_the_engines_counters(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:

        async def one_more() -> bool:
            assert complete(await r.chat(stream=True))
            return r.metric("kv_failed_path", reason=kp.RECOMPUTED) == 1

        assert not await one_more()
        d.kv.bad_peers["p0"] = "recompute"
        await until(one_more)
        served = len(p.requests)
        assert all(complete(reply) for reply in await many(r, 4))
        assert len(p.requests) == served


async def test_kv_that_cannot_be_loaded_twice_fails_the_path(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        d.faults.extend(["error_event", "ok"])
        assert complete(await r.chat(stream=True))
        assert complete(await r.chat(stream=True))
        assert state(r, "failed") == 0, "a success was between them"
        d.kv.bad_peers["p0"] = "500"
        d.faults.append("error_event")
        assert complete(await r.chat(stream=True))
        await failed(r, kp.KV_NOT_LOADED)


@pytest.mark.usefixtures("no_retry")
async def test_a_prefill_pod_without_kv_parameters_is_not_asked_again(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        p.always = "no_kv"
        assert all(complete(reply) for reply in await many(r, 3))
        assert r.metric("kv_failed_path", reason=kp.KV_PARAMS_MISSING) == 1
        assert r.metric("decode_only_total", reason="kv_failed") == 2
    assert len(p.requests) == 1
