"""Every request is judged once by the latency targets, as its client saw it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.router.conftest import CHAT, Router, RouterFactory
from tests.runtime.router.fake_engine import pair
from tests.runtime.router.signals import EASY, LONG, SHORT, awaiting, judged, leave, overdue, served
from tests.runtime.waiting import until

from phasewise_runtime.contract import (
    SLO_BOTH_MISSED,
    SLO_FAILED,
    SLO_ITL_MISSED,
    SLO_MET,
    SLO_TTFT_MISSED,
    WAIT_PHASES,
)

TOKENS = tuple("abcdefghij" * 10)


async def read_until(r: Router, text: bytes, **fields: Any) -> Any:
    """A stream, read until `text` came."""
    response = await r.session.post(f"{r.url}/v1/chat/completions", json={**CHAT, "stream": True, **fields})
    seen = b""
    while text not in seen:
        seen += await response.content.readany()
    return response


# --- answers -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("late", "slow", "counts_as"),
    [
        (False, False, SLO_MET),
        (True, False, SLO_TTFT_MISSED),
        (False, True, SLO_ITL_MISSED),
        (True, True, SLO_BOTH_MISSED),
    ],
)
async def test_a_late_first_token_and_slow_gaps_are_counted_apart(
    router: RouterFactory, stream: bool, late: bool, slow: bool, counts_as: str
) -> None:
    p, d = pair(gap=2 * SHORT if slow else 0.0)
    targets = {"ttft_target_seconds": SHORT if late else LONG, "itl_target_seconds": SHORT if slow else LONG}
    if late:
        d.first_gate.clear()
    async with router(p, d, **targets) as r:
        task = asyncio.create_task(r.chat(stream=stream))
        if late:
            await until(lambda: overdue(r))
            d.first_gate.set()
        assert (await task).status == 200
        assert await judged(r) == {counts_as: 1}
    assert d.bodies[0]["stream"] is True, "measured as a stream"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_of_one_token_is_judged_on_its_ttft_only(router: RouterFactory, stream: bool) -> None:
    async with router(*pair(), ttft_target_seconds=LONG, itl_target_seconds=1e-9) as r:
        assert (await r.chat(stream=stream, max_tokens=1)).status == 200
        assert await judged(r) == {SLO_MET: 1}


async def test_an_answer_whose_ttft_cannot_be_seen_is_neither_judged_nor_pending(router: RouterFactory) -> None:
    p, d = pair()
    d.first_gate.clear()
    async with router(p, d, ttft_target_seconds=1e-6, itl_target_seconds=LONG) as r:
        task = asyncio.create_task(r.complete(logprobs=1))
        await until(lambda: d.requests)
        assert awaiting(r) == overdue(r) == {}
        d.first_gate.set()
        assert (await task).status == 200
        assert await judged(r) == {}


async def test_without_targets_nothing_is_judged(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        assert (await r.chat(stream=True)).status == 200
        d.always = "500"
        assert (await r.chat(stream=True)).status == 500
        assert await judged(r, 2) == {}
        assert overdue(r) == {}


def by_revision(r: Router, result: str) -> dict[str, float]:
    found = {
        e.role: r.metric("revision_slo_requests_total", role=e.role, revision="r1", result=result) for e in r.engines
    }
    return {role: count for role, count in found.items() if count}


async def test_a_result_counts_for_the_revisions_of_the_pods_that_served(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d, **EASY) as r:
        assert (await r.chat(stream=True)).status == 200
        assert await judged(r) == {SLO_MET: 1}
        assert by_revision(r, SLO_MET) == {"prefill": 1, "decode": 1}
        assert (await r.chat(stream=True, n=2)).status == 200
        await judged(r, 2)
        assert by_revision(r, SLO_MET) == {"prefill": 1, "decode": 2}, "its decode pod did the prefill"
        d.always = "500"
        await r.chat(stream=True)
        await judged(r, 3)
        assert by_revision(r, SLO_FAILED)["decode"] == 1


# --- failures ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", ["500", "503", "drop", "error_event", "die", "mid_error", "mid_abort", "truncate"])
async def test_a_request_without_a_complete_answer_has_failed(router: RouterFactory, fault: str) -> None:
    async with router(*pair(always=fault), hold_seconds=0.1, **EASY) as r:
        await r.chat(stream=True)
        assert await judged(r) == {SLO_FAILED: 1}


async def test_a_retried_request_counts_once_by_what_its_client_saw(router: RouterFactory) -> None:
    p, d = pair()
    d.faults.extend(["error_event", "500"])
    async with router(p, d, **EASY) as r:
        assert (await r.chat(stream=True)).status == 200
        assert await judged(r) == {SLO_MET: 1}


async def test_requests_refused_for_lack_of_capacity_have_failed(router: RouterFactory) -> None:
    p, d = pair()
    d.first_gate.clear()
    async with router(p, d, max_concurrency=1, queue_size=0, **EASY) as r:
        running = asyncio.create_task(r.chat())
        await until(lambda: d.requests)
        assert (await r.chat()).status == 429
        d.first_gate.set()
        assert (await running).status == 200
        assert await judged(r, 2) == {SLO_FAILED: 1, SLO_MET: 1}
    async with router(hold_seconds=0.05, **EASY) as r:
        assert (await r.chat()).status == 503
        assert await judged(r) == {SLO_FAILED: 1}
    async with router(p, d, held_body_bytes=1, **EASY) as r:
        assert (await r.chat()).status == 429
        assert await judged(r) == {SLO_FAILED: 1}
        assert r.metric("arrivals_total") == 0, "its body was not read"


async def test_errors_of_the_client_are_not_counted(router: RouterFactory) -> None:
    p, d = pair(always="400")
    async with router(p, d, ttft_target_seconds=1e-9, itl_target_seconds=1e-9) as r:
        assert (await r.chat(stream=True)).status == 400, "the engine refuses it"
        assert (await r.chat(messages=[])).status == 400
        assert (await r.chat(model="other")).status == 404
        assert await judged(r, 3) == {}
        assert r.metric("arrivals_total") == 1


# --- clients that leave ------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", WAIT_PHASES)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_after_too_long_a_wait_has_seen_a_miss(
    router: RouterFactory, phase: str, stream: bool
) -> None:
    p, d = pair()
    (p if phase == "prefill" else d).first_gate.clear()
    async with router(p, d, ttft_target_seconds=SHORT, itl_target_seconds=LONG) as r:
        if phase == "queue":
            r.server.pod_registry.replace_all([])
        task = asyncio.create_task(r.chat(stream=stream))
        await until(lambda: overdue(r) == {phase: 1})
        await leave(task, r)
        assert await judged(r) == {SLO_TTFT_MISSED: 1}
        assert awaiting(r) == overdue(r) == {}


async def test_a_client_that_leaves_early_is_not_counted(router: RouterFactory) -> None:
    p, d = pair()
    d.first_gate.clear()
    async with router(p, d, **EASY) as r:
        task = asyncio.create_task(r.chat(stream=True))
        await until(lambda: awaiting(r) == {"decode": 1})
        await leave(task, r)
        assert await judged(r) == {}
        assert awaiting(r) == {}


@pytest.mark.parametrize(
    ("fields", "counts_as"),
    [
        ({}, {}),  # how many tokens its events held is not known: neither content nor not
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {SLO_ITL_MISSED: 1}),
    ],
)
async def test_a_client_that_leaves_in_the_stream_is_judged_on_what_it_saw(
    router: RouterFactory, fields: dict[str, Any], counts_as: dict[str, float]
) -> None:
    p, d = pair(tokens=TOKENS, gap=2 * SHORT)
    async with router(p, d, ttft_target_seconds=LONG, itl_target_seconds=SHORT) as r:
        (await read_until(r, b'"c"', **fields)).close()
        await until(lambda: r.metric("requests_total", outcome="client_closed") == 1)
        await until(lambda: served(r) == {"p0": 1, "d0": 1})
        assert await judged(r) == counts_as
