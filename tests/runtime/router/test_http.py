"""The surface for clients: models, errors in the API's shape, keys, limits, queue, probes, the end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from tests.runtime.router.conftest import CHAT, Reply, RouterFactory
from tests.runtime.router.fake_engine import MODEL, FakeEngine
from tests.runtime.waiting import until

from phasewise_runtime.router.auth import ApiKeys
from phasewise_runtime.router.errors import ApiError


def error_of(reply: Reply) -> dict[str, Any]:
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert reply.headers["X-Request-Id"]
    return error


async def test_the_model_is_listed_with_no_engine_at_all(router: RouterFactory) -> None:
    async with router() as r:
        listed, one, other = await r.get("/v1/models"), await r.get("/v1/models/tiny"), await r.get("/v1/models/gpt")
    assert [m["id"] for m in listed.json["data"]] == [MODEL]
    assert one.json["id"] == MODEL
    assert (other.status, error_of(other)["code"]) == (404, "model_not_found")


BAD_REQUESTS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", "/v1/embeddings", {"json": {}}, 404, "POST /v1/chat/completions"),
    ("GET", "/nowhere", {}, 404, "Served are"),
    ("GET", "/v1/chat/completions", {}, 405, "takes POST"),
    ("POST", "/v1/models", {"json": {}}, 405, "takes GET"),
    ("POST", "/v1/chat/completions", {"data": b"{", "headers": {"Content-Type": "application/json"}}, 400, "not valid"),
    (
        "POST",
        "/v1/chat/completions",
        {"data": b"{}", "headers": {"Content-Type": "text/plain"}},
        415,
        "application/json",
    ),
    ("POST", "/v1/chat/completions", {"json": {"model": "gpt", "messages": [1]}}, 404, "serves 'tiny'"),
    ("POST", "/v1/chat/completions", {"json": {"model": MODEL}}, 400, "'messages' is missing"),
    ("POST", "/v1/completions", {"json": {"model": MODEL}}, 400, "'prompt' is missing"),
    ("POST", "/v1/completions", {"json": {"prompt": "x" * 5000}}, 413, "larger than 4096 bytes"),
]


@pytest.mark.parametrize(("method", "path", "sent", "status", "says"), BAD_REQUESTS)
async def test_bad_requests_get_an_error_that_says_what_to_do(
    router: RouterFactory, method: str, path: str, sent: dict[str, Any], status: int, says: str
) -> None:
    async with router(FakeEngine("decode", "d0"), max_body_bytes=4096) as r:
        async with r.session.request(method, r.url + path, **sent) as response:
            reply = Reply(response.status, response.headers, await response.text())
        assert reply.status == status
        assert says in error_of(reply)["message"]
        assert (await r.chat()).status == 200, "and nothing is broken by it"
        assert not [e for e in r.engines if len(e.requests) > 1]


async def test_the_official_client_names_the_errors(router: RouterFactory) -> None:
    async with router(FakeEngine("decode", "d0")) as r:
        client = openai.AsyncOpenAI(base_url=r.url + "/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.NotFoundError, match="serves 'tiny'"):
            await client.chat.completions.create(model="gpt", messages=CHAT["messages"])
        await client.close()


async def test_an_invalid_request_id_is_replaced(router: RouterFactory) -> None:
    async with router(FakeEngine("decode", "d0")) as r:
        reply = await r.post("/v1/chat/completions", CHAT, headers={"X-Request-Id": "x" * 500})
    assert len(reply.headers["X-Request-Id"]) == 32


# --- keys ----------------------------------------------------------------------------------------------------
async def test_only_holders_of_a_key_are_served(router: RouterFactory, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("key-1\n")
    (tmp_path / "two").write_text("key-2")
    async with router(FakeEngine("decode", "d0"), api_keys_dir=tmp_path) as r:
        for given, status in (
            (None, 401),
            ("key-1", 401),
            ("Bearer nope", 401),
            ("Bearer key-1", 200),
            ("bearer key-2", 200),
        ):
            headers = {"Authorization": given} if given else {}
            reply = await r.post("/v1/chat/completions", CHAT, headers=headers)
            assert reply.status == status, given
            if status == 401:
                assert error_of(reply)["code"] == "invalid_api_key"
                assert "key-1" not in reply.text
        assert (await r.get("/v1/models")).status == 401
        assert (await r.admin("/readyz")).status == 200


def test_keys_are_read_again_when_they_change(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path)
    with pytest.raises(ApiError):
        keys.check("Bearer a")  # an empty folder admits no client
    (tmp_path / "k").write_text("a")
    keys.reload()
    keys.check("Bearer a")
    (tmp_path / "k").write_text("bb")
    keys.reload()
    with pytest.raises(ApiError):
        keys.check("Bearer a")
    (tmp_path / "k").unlink()
    tmp_path.rmdir()
    keys.reload()
    keys.check("Bearer bb")  # what cannot be read leaves the last keys in force


# --- waiting -------------------------------------------------------------------------------------------------
async def test_requests_wait_for_the_first_decode_pod(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    async with router(d) as r:
        r.server.pod_registry.replace_all([])
        tasks = [asyncio.create_task(r.chat()) for _ in range(3)]
        await until(lambda: r.metric("queue_depth") == 3)
        r.server.pod_registry.replace_all([d.pod(ready=False)])
        assert not any(t.done() for t in tasks)
        r.server.pod_registry.put(d.pod())
        assert [(await t).status for t in tasks] == [200] * 3
        assert r.metric("queue_depth") == 0


async def test_a_wait_ends_at_the_hold_deadline(router: RouterFactory) -> None:
    async with router(hold_seconds=0.05) as r:
        reply = await r.chat()
        assert r.metric("queue_depth") == 0
        assert r.metric("requests_total", outcome="rejected", code="503") == 1
    assert (reply.status, error_of(reply)["code"]) == (503, "no_engine")
    assert int(reply.headers["Retry-After"]) >= 1


async def test_beyond_the_limit_requests_queue_and_beyond_the_queue_they_are_refused(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    d.first_gate.clear()
    async with router(p, d, max_concurrency=2, queue_size=1) as r:
        running = [asyncio.create_task(r.chat()) for _ in range(2)]
        await until(lambda: len(d.requests) == 2)
        waiting = asyncio.create_task(r.chat())
        await until(lambda: r.metric("queue_depth") == 1)
        refused = await r.chat()
        assert (refused.status, error_of(refused)["code"]) == (429, "overloaded")
        assert refused.headers["Retry-After"]
        assert len(p.requests) == 2, "a request waits before its prefill request"
        d.first_gate.set()
        assert [(await t).status for t in (*running, waiting)] == [200] * 3


async def test_at_full_concurrency_a_wait_ends_at_the_hold_deadline(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    d.first_gate.clear()
    async with router(d, max_concurrency=1, hold_seconds=0.05) as r:
        running = asyncio.create_task(r.chat())
        await until(lambda: d.requests)
        late = await r.chat()
        assert (late.status, error_of(late)["code"]) == (503, "overloaded")
        d.first_gate.set()
        assert (await running).status == 200


async def test_a_client_that_leaves_the_queue_takes_no_place(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    d.first_gate.clear()
    async with router(d, max_concurrency=1) as r:
        running = asyncio.create_task(r.chat())
        await until(lambda: d.requests)
        leaver = asyncio.create_task(r.chat())
        await until(lambda: r.metric("queue_depth") == 1)
        leaver.cancel()
        await until(lambda: r.metric("queue_depth") == 0)
        d.first_gate.set()
        assert (await running).status == 200
        assert (await r.chat()).status == 200


async def test_load_is_spread_over_equal_pods(router: RouterFactory) -> None:
    engines = [FakeEngine(role, f"{role}{i}") for role in ("prefill", "decode") for i in range(2)]
    for e in engines[2:]:
        e.first_gate.clear()
    async with router(*engines) as r:
        tasks = [asyncio.create_task(r.chat()) for _ in range(8)]
        await until(lambda: sum(len(e.requests) for e in engines[2:]) == 8)
        assert [len(e.requests) for e in engines[2:]] == [4, 4]
        for e in engines[2:]:
            e.first_gate.set()
        await asyncio.gather(*tasks)


# --- probes and the end --------------------------------------------------------------------------------------
async def test_ready_without_engines_but_not_before_the_first_list(router: RouterFactory) -> None:
    async with router() as r:
        assert (await r.admin("/readyz")).status == 200
        r.server.pod_registry.synced = False
        not_yet = await r.admin("/readyz")
        assert (not_yet.status, "not been listed" in not_yet.text) == (503, True)
        assert (await r.admin("/livez")).status == 200
        page = await r.admin("/metrics")
        assert "phasewise_router_ttft_seconds_bucket" in page.text
        assert (await r.get("/metrics")).status == 404, "clients reach only the API"


async def test_at_the_end_running_streams_finish_and_nothing_new_is_taken(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    d.gate.clear()
    async with router(d) as r:
        async with r.session.post(r.url + "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            text = await response.content.readany()
            drain = asyncio.create_task(r.server.drain())
            await until(lambda: r.server.not_ready() == "shutting down")
            assert (await r.admin("/readyz")).status == 503
            async with aiohttp.ClientSession() as fresh:
                await until(lambda: is_refused(fresh, r.url))
            assert not drain.done()
            d.gate.set()
            text += await response.content.read()
        await drain
        assert b"[DONE]" in text


async def is_refused(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url + "/v1/models"):
            return False
    except aiohttp.ClientConnectorError:
        return True


@pytest.mark.usefixtures("short_deadlines")
async def test_the_end_comes_at_the_deadline(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    d.gate.clear()
    async with router(d, max_generation_seconds=0.2) as r:
        response = await r.session.post(r.url + "/v1/chat/completions", json={**CHAT, "stream": True})
        await asyncio.wait_for(r.server.drain(), 5)
        response.close()


async def test_a_client_that_takes_nothing_is_cut_off(router: RouterFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasewise_runtime.router.handler.WRITE_MARGIN_SECONDS", 0.0)
    d = FakeEngine("decode", "d0", tokens=tuple(["x" * 60000] * 400))
    async with router(d, max_generation_seconds=0.5, hold_seconds=0.1) as r:
        host, port = "127.0.0.1", r.server.port
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        body = json.dumps({**CHAT, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: r.metric("active_requests") == 1)
        await until(lambda: r.metric("active_requests") == 0)
        writer.close()
        del reader
