"""A request that ends engine processes reaches one other engine at most; the death of one engine loses no request."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest
from tests.runtime.router.conftest import CHAT, SETTINGS, RouterFactory
from tests.runtime.router.fake_engine import ENGINE_DEAD, MODEL, FakeEngine
from tests.runtime.router.faults import complete, four, many, once
from tests.runtime.waiting import until

from phasewise_runtime.router.engine_client import EngineAnswer, EngineClient, EngineError

DEATHS = ("crash", "engine_dead")
"""The process is gone with its connections; or vLLM's API server says first that its engine process is gone."""
SHAPES = ({"stream": True}, {"stream": False}, {"logprobs": True})


def eight(role: str, fault: str) -> list[FakeEngine]:
    """Four engines of each role; those of `role` die of every request."""
    engines = [FakeEngine(r, f"{r}{i}") for r in ("prefill", "decode") for i in range(4)]
    for engine in engines:
        engine.always = fault if role in (engine.role, "both") else None
    return engines


def asked(engines: list[FakeEngine], fault: str) -> list[str]:
    return sorted(e.name for e in engines if e.requests and e.always == fault)


@pytest.mark.parametrize("fields", SHAPES)
@pytest.mark.parametrize("fault", DEATHS)
@pytest.mark.parametrize("role", ["decode", "both"])
async def test_a_request_that_kills_engines_kills_two_and_is_answered_502(
    router: RouterFactory, role: str, fault: str, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engines = eight(role, fault)
    async with router(*engines) as r:
        reply = await r.post("/v1/chat/completions", {**CHAT, **fields}, headers={"X-Request-Id": "poison-1"})
        assert r.metric("engine_died_requests_total") == 1
        assert r.metric("requests_total", outcome="engine_error", code="502") == 1
        assert r.metric("ejections_total", reason="engine_died") == 2
    assert (reply.status, reply.json["error"]["type"]) == (502, "engine_error")
    assert reply.json["error"]["code"] == "engine_died"
    assert "stack trace" not in reply.text
    died = asked(engines, fault)
    assert len(died) == 2
    (said,) = [rec for rec in caplog.records if rec.levelno == logging.ERROR]
    assert (said.__dict__["request_id"], sorted(said.__dict__["pods"])) == ("poison-1", died)


@pytest.mark.parametrize("fault", DEATHS)
async def test_where_prefill_dies_the_decode_pod_is_the_one_other_engine(router: RouterFactory, fault: str) -> None:
    engines = eight("prefill", fault)
    async with router(*engines) as r:
        assert complete(await r.chat(stream=True))
        assert r.metric("decode_only_total", reason="engine_died") == 1
        assert r.metric("engine_died_requests_total") == 0
    assert len(asked(engines, fault)) == 1


async def test_no_pool_is_emptied_where_it_has_two_pods(router: RouterFactory) -> None:
    engines = four()
    for engine in engines:
        engine.faults.append("crash")
    async with router(*engines) as r:
        assert (await r.chat(stream=True)).status == 502
        assert sorted(e.role for e in engines if e.requests) == ["decode", "prefill"]
        for engine in engines:
            engine.faults.clear()
        assert all(complete(reply) for reply in await many(r, 8))


async def test_the_official_client_does_not_send_it_again(router: RouterFactory) -> None:
    engines = eight("both", "crash")
    async with router(*engines) as r:
        client = openai.AsyncOpenAI(base_url=r.url + "/v1", api_key="none", max_retries=2)
        with pytest.raises(openai.InternalServerError, match="may be the cause"):
            await client.chat.completions.create(model=MODEL, messages=CHAT["messages"])
        await client.close()
    assert len(asked(engines, "crash")) == 2


async def test_it_reaches_no_more_engines_over_kept_connections(router: RouterFactory) -> None:
    engines = eight("none", "crash")
    async with router(*engines) as r:
        for engine in engines:
            engine.first_gate.clear()
        tasks = [asyncio.create_task(r.chat(stream=True)) for _ in range(24)]
        await until(lambda: r.metric("inflight_requests", role="prefill") == len(tasks))
        for engine in engines:
            engine.first_gate.set()
        assert all(complete(reply) for reply in await asyncio.gather(*tasks))
        for engine in engines:
            engine.requests.clear()
            engine.always = "crash"
        assert (await r.chat(stream=True)).json["error"]["code"] == "engine_died"
    assert len(asked(engines, "crash")) == 2


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_the_death_of_an_engine_under_load_loses_no_request(router: RouterFactory, role: str) -> None:
    engines = four()
    for engine in engines:
        engine.first_gate.clear()
    dying = next(e for e in engines if e.role == role)
    async with router(*engines) as r:
        tasks = [asyncio.create_task(r.chat(stream=bool(i % 2))) for i in range(20)]
        for engine in engines[:2]:
            await until(lambda e=engine: len(e.requests) == 10)
            if role == "decode":
                engine.first_gate.set()
        await until(lambda: len(dying.requests) >= 5)
        await dying.kill()
        for engine in engines:
            engine.first_gate.set()
        assert all([complete(await t) for t in tasks])
        assert r.metric("engine_died_requests_total") == 0
    assert once(engines)


async def test_pods_that_are_deleted_are_no_sign_against_a_request(router: RouterFactory) -> None:
    """Both pods of its first pair and the decode pod of its second, one after the other."""
    engines = (*four(), FakeEngine("decode", "d2"))
    for engine in engines:
        engine.first_gate.clear()
    async with router(*engines) as r:
        task = asyncio.create_task(r.chat(stream=True))
        for _ in range(2):
            for role in ("prefill", "decode"):
                await until(lambda role=role: holder(engines, role))
                engine = holder(engines, role)
                assert engine is not None
                if role == "prefill":
                    engine.first_gate.set()
                    await until(lambda: holder(engines, "decode"))
                r.server.pod_registry.put(engine.pod(terminating=True))
                await engine.kill()
        last = next(e for e in engines if e.role == "decode" and e.runner)
        last.first_gate.set()
        assert complete(await task)
        assert r.metric("engine_died_requests_total") == 0


@pytest.mark.parametrize(("leaving", "reason"), [(True, "status_500"), (False, "engine_died")])
async def test_what_an_engine_says_of_its_end_counts_where_nobody_ended_it(leaving: bool, reason: str) -> None:
    answer = EngineAnswer(500, [], json.dumps({"error": ENGINE_DEAD}).encode())
    failure = EngineError(FakeEngine("decode", "d0").pod(), "status_500", "the engine answered", answer=answer)
    async with aiohttp.ClientSession() as session:
        await EngineClient(session, SETTINGS).diagnose(failure, lambda _: leaving)
    assert failure.reason == reason


@pytest.mark.parametrize(("status", "reason"), [(400, "error_event"), (500, "engine_died")])
async def test_an_error_that_repeats_words_of_the_client_is_no_word_of_the_engines_end(
    status: int, reason: str
) -> None:
    answer = EngineAnswer(status, [], json.dumps({"error": ENGINE_DEAD}).encode())
    failure = EngineError(FakeEngine("decode", "d0").pod(), "error_event", "the engine said", answer=answer)
    async with aiohttp.ClientSession() as session:
        await EngineClient(session, SETTINGS).diagnose(failure, lambda _: False)
    assert failure.reason == reason


async def test_an_engine_that_is_slow_to_say_how_it_is_has_not_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is overloaded, or the way to it is lost: the process that ended leaves a port that refuses."""
    monkeypatch.setattr("phasewise_runtime.router.engine_client.DIAGNOSIS_SECONDS", 0.1)
    silent = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    pod = replace(FakeEngine("decode", "d0").pod(), port=silent.sockets[0].getsockname()[1])
    failure = EngineError(pod, "disconnected", "the connection broke before an answer")
    async with aiohttp.ClientSession() as session:
        await EngineClient(session, SETTINGS).diagnose(failure, lambda _: False)
        silent.close()
        assert failure.reason == "disconnected"
        await EngineClient(session, SETTINGS).diagnose(failure, lambda _: False)
    assert failure.reason == "engine_died"


async def test_one_engine_of_each_role_may_die_at_once_under_load(router: RouterFactory) -> None:
    """The requests in prefill, those that wait for their first token, and those that come after."""
    engines = four()
    for engine in engines:
        engine.first_gate.clear()
    p0, _, d0, _ = engines
    async with router(*engines) as r:
        early = [asyncio.create_task(r.chat(stream=bool(i % 2))) for i in range(10)]
        await until(lambda: sum(len(e.requests) for e in engines[:2]) == 10)
        for engine in engines[:2]:
            engine.first_gate.set()
        await until(lambda: sum(len(e.requests) for e in engines[2:]) == 10)
        for engine in engines[:2]:
            engine.first_gate.clear()
        late = [asyncio.create_task(r.chat(stream=bool(i % 2))) for i in range(10)]
        await until(lambda: sum(len(e.requests) for e in engines[:2]) == 20)
        await asyncio.gather(p0.kill(), d0.kill())
        for engine in engines:
            engine.first_gate.set()
        after = await many(r, 8)
        assert all([complete(await t) for t in early + late])
        assert all(complete(reply) for reply in after)
        assert r.metric("engine_died_requests_total") == 0
    assert once(engines)


def holder(engines: tuple[FakeEngine, ...], role: str) -> FakeEngine | None:
    """The engine of this role that runs and has the request."""
    return next((e for e in engines if e.role == role and e.runner and e.requests), None)


async def test_a_lost_connection_of_a_healthy_engine_is_no_death(router: RouterFactory) -> None:
    engines = eight("decode", "drop")
    async with router(*engines) as r:
        reply = await r.chat(stream=True)
        assert r.metric("engine_died_requests_total") == 0
    assert (reply.status, reply.json["error"]["code"]) == (502, "disconnected")
    assert len(asked(engines, "drop")) == 3


@pytest.mark.parametrize("fault", ["mid_crash", "engine_dead_event"])
async def test_a_death_in_mid_stream_is_an_explicit_error_with_its_code(router: RouterFactory, fault: str) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", always=fault)
    async with router(p, d) as r:
        reply = await r.chat(stream=True)
        assert r.metric("stream_errors_total", reason="engine_died") == 1
        assert r.metric("ejections_total", pod="d0", reason="engine_died") == 1
    error = json.loads(reply.events[-1])["error"]
    assert (error["type"], error["code"]) == ("engine_error", "engine_died")
    assert "stack trace" not in reply.text
    assert "[DONE]" not in reply.text
