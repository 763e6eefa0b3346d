"""A request where nothing fails: its way through the pods, fields, headers, answers, metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest
from tests.runtime.router.conftest import CHAT, COMPLETION, RouterFactory
from tests.runtime.router.fake_engine import FINGERPRINT, MODEL, FakeEngine, pair
from tests.runtime.waiting import until


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_goes_through_prefill_and_decode(router: RouterFactory, path: str, stream: bool) -> None:
    p, d = pair()
    async with router(p, d) as r:
        reply = await r.post(path, {**(CHAT if "chat" in path else COMPLETION), "stream": stream})
    assert reply.status == 200
    assert reply.content == "Hello world"
    assert [s.path for s in p.requests] == [s.path for s in d.requests] == [path]
    assert d.kv_seen, "the decode request carries what prefill answered"
    assert (reply.events[-1] == "[DONE]") if stream else (reply.json["usage"]["completion_tokens"] == 4)


async def test_engines_get_the_clients_request_but_for_the_listed_fields(router: RouterFactory) -> None:
    p, d = pair()
    sent = {
        **CHAT,
        "stream": True,
        "max_tokens": 4,
        "min_tokens": 3,
        "temperature": 0.1,
        "made_up": {"x": [1, "\U0001f600\u00e9"]},
        "kv_transfer_params": {"remote_host": "evil"},
        "ec_transfer_params": {"host": "evil"},
        "vllm_xargs": {"a": 1, "kv_transfer_params": "evil"},
    }
    async with router(p, d) as r:
        assert (await r.post("/v1/chat/completions", sent)).status == 200
    rest = {k: v for k, v in sent.items() if k not in ("kv_transfer_params", "ec_transfer_params")}
    rest["vllm_xargs"] = {"a": 1}
    prefill, decode = p.bodies[0], d.bodies[0]
    assert prefill.pop("kv_transfer_params") == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    of_the_prompt = {k: v for k, v in rest.items() if k not in ("min_tokens", "temperature")}
    assert prefill == {**of_the_prompt, "stream": False, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    assert decode.pop("kv_transfer_params")["remote_engine_id"] == "p0"
    assert decode == {**rest, "stream_options": {"include_usage": True}}


async def test_client_headers_reach_prefill_and_decode_and_the_request_id_comes_back(router: RouterFactory) -> None:
    p, d = pair()
    headers = {
        "Authorization": "Bearer secret",
        "X-Request-Id": "abc-1",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "X-Custom": "kept",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "dropped",
        "Accept-Encoding": "gzip",
    }
    async with router(p, d) as r:
        reply = await r.post("/v1/chat/completions", CHAT, headers=headers)
    assert reply.headers["X-Request-Id"] == "abc-1"
    for seen in (p.requests[0].headers, d.requests[0].headers):
        lower = {k.lower(): v for k, v in seen.items()}
        for name in ("Authorization", "X-Request-Id", "traceparent", "X-Custom"):
            assert lower[name.lower()] == headers[name]
        assert "x-hop" not in lower
        assert lower["accept-encoding"] == "identity"


async def test_a_request_id_is_made_where_there_is_none(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        reply = await r.chat()
    made = reply.headers["X-Request-Id"]
    ids = {{k.lower(): v for k, v in e.requests[0].headers.items()}["x-request-id"] for e in (p, d)}
    assert made
    assert ids == {made}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_assembled_answer_equals_the_engines_own(router: RouterFactory, path: str) -> None:
    p, d = pair()
    async with router(p, d) as r:
        body = {**(CHAT if "chat" in path else COMPLETION), "max_tokens": 3}
        reply = await r.post(path, body)
        assert d.bodies[0]["stream"] is True, "it was streamed upstream"
        assert r.metric("ttft_seconds_count") == 1
        assert r.metric("itl_seconds_count") == 1
    own = d.answer_to({**body, "kv_transfer_params": None}, chat="chat" in path)
    assert {**reply.json, "id": ""} == {**own, "id": ""}


UNASSEMBLED: list[tuple[str, dict[str, Any], str | None]] = [
    ("n", {"n": 2}, "several_choices"),
    ("prompts", {"prompt": ["a", "b"]}, "several_prompts"),
    ("token prompts", {"prompt": [[1, 2], [3]]}, "several_prompts"),
    ("prompt_logprobs", {"prompt_logprobs": 1}, "prompt_logprobs"),
    ("echo with logprobs", {"echo": True, "logprobs": 1}, "prompt_logprobs"),
    ("beam search", {"use_beam_search": True}, "beam_search"),
    ("no generation", {"max_tokens": 0, "echo": True}, "no_generation"),
    ("logprobs", {"logprobs": 2}, None),
    ("unknown field", {"surprise": 1}, None),
]


@pytest.mark.parametrize(("fields", "decode_only"), [c[1:] for c in UNASSEMBLED], ids=[c[0] for c in UNASSEMBLED])
async def test_shapes_that_cannot_be_assembled_pass_through_and_are_counted(
    router: RouterFactory, fields: dict[str, Any], decode_only: str | None
) -> None:
    p, d = pair()
    async with router(p, d) as r:
        reply = await r.complete(**fields)
        assert reply.status == 200
        assert "stream" not in d.bodies[0]
        assert r.metric("unmeasured_requests_total", metric="ttft", reason="shape") == 1
        assert r.metric("ttft_seconds_count") == 0
        assert r.metric("output_tokens_total") > 0
        assert bool(p.requests) == (decode_only is None)
        assert r.metric("decode_only_total", reason=decode_only or "none") == (1 if decode_only else 0)


async def test_one_prompt_in_a_list_is_prefilled(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        await r.complete(prompt=["a"])
        await r.complete(prompt=[1, 2, 3])
    assert len(p.requests) == 2


async def test_usage_that_the_client_did_not_ask_for_is_not_shown(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        plain = await r.chat(stream=True)
        asked = await r.chat(stream=True, stream_options={"include_usage": True})
        assert r.metric("output_tokens_total") == 8
    assert "usage" not in plain.text
    assert json.loads(plain.events[-2])["system_fingerprint"] == FINGERPRINT, (
        "as vLLM writes it where no usage is asked for"
    )
    assert json.loads(asked.events[-2])["usage"]["completion_tokens"] == 4


async def test_ttft_is_the_first_output_and_not_the_head_or_the_role(router: RouterFactory) -> None:
    p, d = pair()
    d.first_gate.clear()
    async with router(p, d) as r:
        task = asyncio.create_task(r.chat(stream=True))
        await until(lambda: d.requests)
        await asyncio.sleep(0.15)
        d.first_gate.set()
        reply = await task
        assert r.metric("ttft_seconds_sum") >= 0.15
        assert r.metric("ttft_phase_seconds_sum", phase="decode_first_token") >= 0.15
        assert r.metric("ttft_phase_seconds_sum") <= r.metric("ttft_seconds_sum") + 0.001
    parts = dict(p.strip().split(";dur=") for p in reply.headers["Server-Timing"].split(","))
    assert set(parts) == {"queue", "prefill", "decode"}
    assert float(parts["decode"]) >= 150


async def test_tokens_are_passed_on_as_they_come(router: RouterFactory) -> None:
    p, d = pair()
    d.gate.clear()
    async with router(p, d) as r:
        async with r.session.post(r.url + "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            first = b""
            while b"Hel" not in first:
                first += await response.content.readany()
            assert b'"lo"' not in first
            assert r.metric("inflight_requests", role="decode") == 1
            assert r.metric("pod_inflight_requests", pod="d0") == 1
            d.gate.set()
            await response.read()
        await until(lambda: r.metric("inflight_requests") == 0)


async def test_a_client_that_goes_away_ends_the_request_in_flight(router: RouterFactory) -> None:
    for role in ("prefill", "decode"):
        p, d = pair()
        slow = p if role == "prefill" else d
        slow.first_gate.clear()
        async with router(p, d) as r:
            task = asyncio.create_task(r.chat(stream=True))
            await until(lambda e=slow: e.requests)
            task.cancel()
            await until(lambda e=slow: e.aborted == 1)
            await until(lambda r=r: r.metric("inflight_requests") == 0 and r.metric("active_requests") == 0)
            assert r.metric("requests_total", outcome="client_closed") == 1


async def test_a_client_that_goes_away_in_mid_stream_ends_the_decode_request(router: RouterFactory) -> None:
    p, d = pair()
    d.gate.clear()
    async with router(p, d) as r:
        response = await r.session.post(r.url + "/v1/chat/completions", json={**CHAT, "stream": True})
        await response.content.readany()
        response.close()
        await until(lambda: d.aborted == 1)


async def test_a_client_that_leaves_with_its_complete_answer_was_served(router: RouterFactory) -> None:
    """The router still waits for the end of the engine's response, which it needs for itself only."""
    p, d = pair()
    d.always = "late_end"
    async with router(p, d) as r:
        async with aiohttp.ClientSession() as session:
            response = await session.post(r.url + "/v1/chat/completions", json={**CHAT, "stream": True})
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await until(lambda: d.aborted == 1)
        await until(lambda: r.metric("requests_total") == 1)
        assert r.metric("requests_total", outcome="ok", code="200") == 1


async def test_the_official_client_streams_and_lists(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        client = openai.AsyncOpenAI(base_url=r.url + "/v1", api_key="none")
        stream = await client.chat.completions.create(model=MODEL, messages=CHAT["messages"], stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
        complete = await client.chat.completions.create(model=MODEL, messages=CHAT["messages"])
        models = [m.id async for m in client.models.list()]
        await client.close()
    assert text == complete.choices[0].message.content == "Hello world"
    assert models == ["tiny"]


async def test_a_pod_of_a_revision_without_a_prefill_pool_does_both_phases(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0", aggregated=True)
    async with router(d) as r:
        assert (await r.chat()).content == "Hello world"
        assert r.metric("decode_only_total", reason="not_disaggregated") == 1


async def test_kv_is_never_passed_to_another_fingerprint(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0", "old"), FakeEngine("decode", "d0", "new")
    async with router(p, d) as r:
        assert (await r.chat()).content == "Hello world"
        assert r.metric("decode_only_total", reason="no_prefill_pod") == 1
    assert not p.requests
    assert not d.kv_seen


async def test_answers_of_another_shape_than_the_frame_are_asked_for_again_without_streaming(
    router: RouterFactory,
) -> None:
    p, d = pair()
    d.faults.append("reasoning")
    async with router(p, d) as r:
        reply = await r.chat()
        assert reply.content == "Hello world"
        assert [b.get("stream") for b in d.bodies] == [True, None]
        assert len(set(d.kv_seen)) == 2, "with a prefill of its own"
        assert r.metric("unmeasured_requests_total", metric="ttft", reason="shape") == 1
