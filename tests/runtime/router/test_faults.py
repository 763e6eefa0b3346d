"""What a client gets when engines fail: a test for each known fault."""

from __future__ import annotations

import asyncio
import json
import logging

import openai
import pytest
from tests.runtime.router.conftest import CHAT, RouterFactory
from tests.runtime.router.fake_engine import ERROR, MODEL, REFUSED, FakeEngine
from tests.runtime.router.faults import complete, four, many, once
from tests.runtime.waiting import until

from phasewise_runtime.contract import PREFILL

IN_OUR_WORDS = {**REFUSED, "type": "invalid_request_error", "code": None}
"""The engine's message and parameter; type and code as in every error of the router."""


# --- prefill -------------------------------------------------------------------------------------------------
async def test_a_killed_prefill_pod_fails_no_request(router: RouterFactory) -> None:
    engines = four()
    async with router(*engines) as r:
        tasks = [asyncio.create_task(r.chat(stream=bool(i % 2))) for i in range(20)]
        await until(lambda: engines[0].requests)
        await engines[0].kill()
        replies = [await t for t in tasks] + await many(r, 40)
        assert r.metric("ejections_total", pod="p0") >= 1
        assert r.metric("pods", role=PREFILL, state="ejected") == 1
    assert all(complete(reply) for reply in replies)
    assert once(engines)


@pytest.mark.parametrize("fault", ["500", "abort", "garbage", "drop"])
async def test_a_failing_prefill_pod_fails_no_request_is_ejected_and_logged(
    router: RouterFactory, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    engines = four()
    engines[0].always = fault
    with caplog.at_level(logging.WARNING):
        async with router(*engines) as r:
            replies = await many(r, 40)
            assert r.metric("ejections_total", pod="p0", role=PREFILL) >= 1
            assert r.metric("retries_total", role="prefill") >= 1
            assert r.metric("decode_only_total") == 0
    assert all(complete(reply) for reply in replies)
    assert len(engines[0].requests) <= 5, "ejected, though its /health says ok"
    said = [rec for rec in caplog.records if rec.message.startswith("pod ejected")]
    assert {getattr(rec, "pod", None) for rec in said} == {"p0"}


async def test_with_every_prefill_pod_failing_requests_are_decode_only(router: RouterFactory) -> None:
    engines = four()
    for e in engines[:2]:
        e.always = "500"
    async with router(*engines) as r:
        replies = await many(r, 20)
        assert r.metric("decode_only_total", reason="prefill_failed") >= 1
        assert r.metric("decode_only_total", reason="prefill_ejected") >= 1
        assert r.metric("decode_only_total") == 20
    assert all(complete(reply) for reply in replies)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_failures_between_successes_eject_no_pod(router: RouterFactory, role: str) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    (p if role == "prefill" else d).faults.extend(["500", "ok"] * 4)
    async with router(p, d) as r:
        assert all(complete(reply) for reply in await many(r, 8))
        assert r.metric("retries_total", role=role, reason="status_500") == 4
        assert r.metric("ejections_total") == 0


async def test_a_busy_prefill_pod_is_not_blamed(router: RouterFactory) -> None:
    engines = four()
    engines[0].always = "429"
    async with router(*engines) as r:
        replies = await many(r, 8)
        assert r.metric("ejections_total") == 0
    assert all(complete(reply) for reply in replies)


async def test_a_prefill_without_kv_parameters_is_counted_and_decode_serves(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0", always="no_kv"), FakeEngine("decode", "d0")
    async with router(p, d) as r:
        assert complete(await r.chat(stream=True))
        assert r.metric("kv_params_missing_total", pod="p0") == 1
        assert r.metric("kv_transfer_ok", pod="p0") == 0
        assert r.metric("decode_only_total", reason="kv_params_missing") == 1
    assert not d.kv_seen


async def test_a_request_that_prefill_refuses_gets_the_decode_pods_own_error(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0", always="400"), FakeEngine("decode", "d0", always="400")
    async with router(p, d) as r:
        for stream in (True, False):
            reply = await r.chat(stream=stream, max_tokens=9)
            assert reply.status == 400
            assert reply.json == {"error": IN_OUR_WORDS}
            assert reply.headers["X-Engine"] == "d0"
        assert r.metric("decode_only_total", reason="prefill_refused") == 2
        assert r.metric("ejections_total") == 0
    assert d.bodies[0]["max_tokens"] == 9


# --- decode before the first token ---------------------------------------------------------------------------
BEFORE_FIRST_TOKEN = [
    *("500", "503", "drop", "error_event", "abort", "die_before_first"),
    *("role_then_error", "role_then_die"),  # the role of a chat answer is no token yet
]


@pytest.mark.parametrize("fault", BEFORE_FIRST_TOKEN)
@pytest.mark.parametrize("stream", [True, False])
async def test_decode_failing_before_the_first_token_is_tried_elsewhere_with_a_new_prefill(
    router: RouterFactory, fault: str, stream: bool
) -> None:
    engines = four()
    engines[2].always = fault
    async with router(*engines) as r:
        replies = await many(r, 12, stream=stream)
        assert r.metric("retries_total", role="decode") >= 1
        assert r.metric("stream_errors_total") == 0
    assert all(complete(reply) for reply in replies)
    assert once(engines), "KV parameters that an engine has seen are not used again"
    assert sum(len(e.requests) for e in engines[:2]) == sum(len(e.kv_seen) for e in engines[2:])


async def test_a_killed_decode_pod_fails_no_request_before_its_first_token(router: RouterFactory) -> None:
    engines = four()
    engines[2].first_gate.clear()
    async with router(*engines) as r:
        tasks = [asyncio.create_task(r.chat(stream=bool(i % 2))) for i in range(20)]
        await until(lambda: len(engines[2].requests) >= 5)
        await engines[2].kill()
        replies = [await t for t in tasks] + await many(r, 20)
    assert all(complete(reply) for reply in replies)
    assert once(engines)


async def test_kv_parameters_are_used_elsewhere_only_where_no_connection_was_made(router: RouterFactory) -> None:
    engines = (FakeEngine("prefill", "p0"), FakeEngine("decode", "d0"), FakeEngine("decode", "d1"))
    async with router(*engines) as r:
        await engines[1].kill()
        replies = await many(r, 4)
    assert all(complete(reply) for reply in replies)
    assert len(engines[0].requests) == 4, "the prompt was not prefilled again"
    assert once(engines)


async def test_the_only_decode_pod_is_retried(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    d.faults.extend(["error_event", "500"])
    async with router(p, d) as r:
        assert complete(await r.chat(stream=True))
    assert len(d.requests) == 3


async def test_a_request_that_fails_everywhere_gets_the_engines_own_error(router: RouterFactory) -> None:
    engines = four()
    for e in engines[2:]:
        e.always = "500"
    async with router(*engines) as r:
        reply = await r.chat(stream=True)
        assert sum(len(e.requests) for e in engines[2:]) == 3, "and does not go round for ever"
        assert r.metric("requests_total", outcome="engine_error", code="500") == 1
    assert reply.status == 500
    assert reply.json == {"error": {**ERROR, "type": "engine_error", "code": None}}


async def test_an_error_event_that_blames_the_request_is_answered_as_that_status(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", always="error_event_400")
    async with router(p, d) as r:
        reply = await r.chat(stream=True)
        assert r.metric("ejections_total") == 0
    assert (reply.status, reply.json) == (400, {"error": IN_OUR_WORDS})
    assert len(d.requests) == 1


async def test_a_client_error_of_decode_is_the_answer_and_is_not_tried_again(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", always="400")
    async with router(p, d) as r:
        reply = await r.chat(stream=True)
    assert (reply.status, reply.json, reply.headers["X-Engine"]) == (400, {"error": IN_OUR_WORDS}, "d0")
    assert len(d.requests) == 1


async def test_a_decode_pod_that_hangs_is_given_up(router: RouterFactory) -> None:
    engines = (FakeEngine("decode", "d0", always="hang"), FakeEngine("decode", "d1"))
    async with router(*engines, first_token_seconds=0.2, gap_seconds=0.2) as r:
        replies = await many(r, 2, stream=True)
    assert all(complete(reply) for reply in replies)


async def test_a_prefill_pod_that_hangs_is_given_up(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0", always="hang"), FakeEngine("decode", "d0")
    async with router(p, d, prefill_seconds=0.1) as r:
        assert complete(await r.chat())
        assert r.metric("retries_total", role="prefill", reason="timeout") == 1
        assert r.metric("decode_only_total", reason="prefill_failed") == 1


# --- decode in mid-stream ------------------------------------------------------------------------------------
MID_STREAM = {
    "die": "disconnected",
    "truncate": "truncated",
    "mid_error": "error_event",
    "mid_abort": "abort",
    "mid_hang": "silent",
}


@pytest.mark.parametrize(("fault", "reason"), MID_STREAM.items())
async def test_decode_dying_in_mid_stream_is_an_explicit_error_and_no_normal_end(
    router: RouterFactory, fault: str, reason: str
) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", always=fault)
    async with router(p, d, gap_seconds=0.3 if fault == "mid_hang" else 60.0) as r:
        reply = await r.chat(stream=True)
        assert r.metric("stream_errors_total", reason=reason) == 1
        assert r.metric("requests_total", outcome="stream_error") == 1
        assert r.metric("itl_seconds_count") == 0
    assert reply.status == 200
    last = json.loads(reply.events[-1])
    assert set(last) == {"error"}
    assert last["error"]["message"]
    assert "[DONE]" not in reply.text
    assert "abort" not in {json.loads(e)["choices"][0]["finish_reason"] for e in reply.events[:-1]}


async def test_the_official_client_raises_on_a_stream_that_breaks(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", always="die")
    async with router(p, d) as r:
        client = openai.AsyncOpenAI(base_url=r.url + "/v1", api_key="none", max_retries=0)
        stream = await client.chat.completions.create(model=MODEL, messages=CHAT["messages"], stream=True)
        with pytest.raises(openai.APIError, match="incomplete"):
            [c async for c in stream]
        await client.close()


@pytest.mark.parametrize("fault", MID_STREAM)
async def test_a_request_that_does_not_stream_survives_a_decode_death_at_any_moment(
    router: RouterFactory, fault: str
) -> None:
    engines = four()
    engines[2].always = fault
    async with router(*engines, gap_seconds=0.2 if fault == "mid_hang" else 60.0) as r:
        replies = await many(r, 4, stream=False)
    assert all(complete(reply) for reply in replies)
    assert once(engines)


@pytest.mark.usefixtures("short_deadlines")
async def test_a_request_that_takes_too_long_is_ended_explicitly(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", gap=0.3)
    async with router(p, d, max_generation_seconds=0.2) as r:
        reply = await r.chat(stream=True)
        assert r.metric("stream_errors_total", reason="deadline") == 1
    assert "longer than" in json.loads(reply.events[-1])["error"]["message"]
