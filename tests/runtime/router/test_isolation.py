"""What one bad request, or one dead pod, must not do to the requests and pods beside it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.runtime.router.conftest import CHAT, RouterFactory
from tests.runtime.router.fake_engine import FakeEngine
from tests.runtime.waiting import until

TOOLS = [{"type": "function", "function": {"name": "f"}}]
"""A request with them is passed through, never assembled from a stream."""


async def warm(r: Any) -> None:
    """Leave idle connections to every engine, several to each."""
    for e in r.engines:
        e.first_gate.clear()
    tasks = [asyncio.create_task(r.chat(stream=True)) for _ in range(3 * len(r.engines))]
    await until(lambda: r.metric("active_requests") == len(tasks))
    for e in r.engines:
        e.first_gate.set()
    await asyncio.gather(*tasks)
    for e in r.engines:
        e.requests.clear()


# --- half-open pods -------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("fast_probes")
async def test_a_recovered_pod_serves_while_its_half_open_request_streams_on(router: RouterFactory) -> None:
    d = FakeEngine("decode", "d0")
    async with router(d) as r, AsyncExitStack() as stack:
        pod_registry = r.server.pod_registry
        for _ in range(2):
            pod_registry.report_failure(d.pod(), "disconnected", hard=True)
            await until(pod_registry.can_serve)
            d.gate.clear()
            await stack.enter_async_context(
                r.session.post(f"{r.url}/v1/chat/completions", json={**CHAT, "stream": True})
            )
        assert (await r.chat(max_tokens=1)).status == 200
        d.gate.set()


@pytest.mark.usefixtures("fast_probes")
async def test_a_half_open_pod_gets_its_request_even_where_others_could_take_it(router: RouterFactory) -> None:
    p, d0, d1 = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0"), FakeEngine("decode", "d1")
    async with router(p, d0, d1) as r:
        r.server.pod_registry.report_failure(d0.pod(), "connect", hard=True)
        await until(lambda: r.metric("pods", role="decode", state="ejected") == 0)
        for _ in range(4):
            assert (await r.chat()).status == 200
    assert len(d0.requests) >= 1
    assert len(p.requests) == 4


async def test_a_decode_pod_that_refused_is_free_of_the_request_that_went_elsewhere(router: RouterFactory) -> None:
    p, d0, d1 = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0"), FakeEngine("decode", "d1")
    async with router(p, d0, d1) as r:
        await d0.kill()
        d1.gate.clear()
        async with r.session.post(f"{r.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            assert response.status == 200
            assert r.metric("ejections_total", pod="d0") == 1
            assert r.metric("pod_inflight_requests", pod="d0") == 0
            assert r.metric("pod_inflight_requests", pod="d1") == 1
            loads = {c.pod.name: c.load for c in r.server.pod_registry.candidates("decode")}
            assert loads == {"d0": 0, "d1": 1}
            d1.gate.set()


# --- bad and long requests -----------------------------------------------------------------------------------
async def test_a_request_that_always_fails_does_not_eject_the_only_decode_pod(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    async with router(p, d) as r:
        for _ in range(4):
            d.faults.extend(["500"] * 3)
            assert (await r.chat(stream=True)).status == 500
        assert (await r.chat(stream=True)).status == 200
        assert r.metric("ejections_total") == 0


async def test_a_request_counts_once_against_a_pod_however_often_it_fails_there(router: RouterFactory) -> None:
    d0, d1 = FakeEngine("decode", "d0", always="500"), FakeEngine("decode", "d1", always="500")
    async with router(d0, d1) as r:
        assert (await r.chat(stream=True)).status == 500
        assert len(d0.requests) + len(d1.requests) == 3
        assert (await r.chat(stream=True)).status == 500
        assert r.metric("ejections_total") == 0
        assert (await r.chat(stream=True)).status == 500
        assert r.metric("ejections_total") == 1, "one of two, and the last stays"


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {"stream": True}])
async def test_a_request_out_of_time_blames_nobody_and_is_not_sent_again(
    router: RouterFactory, fields: dict[str, Any]
) -> None:
    d = FakeEngine("decode", "d0")
    d.first_gate.clear()
    async with router(d, max_generation_seconds=0.2) as r:
        reply = await r.chat(**fields)
        assert (reply.status, reply.json["error"]["code"]) == (504, "deadline")
        pod_registry = r.server.pod_registry
        pod_registry.report_failure(d.pod(), "disconnected", hard=True)
        assert r.metric("ejections_total") == 1, "the pod is ejectable"
        assert r.metric("ejections_total", reason="deadline") == 0
    assert len(d.requests) == 1


@pytest.mark.usefixtures("short_deadlines")
async def test_a_prefill_that_uses_up_the_request_is_out_of_time_too(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0", always="hang"), FakeEngine("decode", "d0")
    async with router(p, d, max_generation_seconds=0.2) as r:
        reply = await r.chat()
    assert (reply.status, reply.json["error"]["code"]) == (504, "deadline")
    assert not d.requests


@pytest.mark.parametrize(("role", "seen"), [("decode", 4), ("prefill", 4)])
async def test_a_request_that_kills_engines_does_not_reach_them_all_over_kept_connections(
    router: RouterFactory, role: str, seen: int
) -> None:
    doomed = [FakeEngine(role, f"{role}{i}") for i in range(8)]
    async with router(*doomed, FakeEngine("decode" if role == "prefill" else "prefill", "other")) as r:
        await warm(r)
        for e in doomed:
            e.always = "drop"
        reply = await r.chat(stream=True)
        assert reply.status == (502 if role == "decode" else 200)
    assert sum(bool(e.requests) for e in doomed) <= seen


async def test_a_kept_connection_that_breaks_late_broke_because_of_the_request(
    router: RouterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phasewise_runtime.router.engine_client.STALE_SECONDS", 0.0)
    d = FakeEngine("decode", "d0")
    async with router(d) as r:
        await warm(r)
        d.faults.append("drop")
        assert (await r.chat(stream=True)).status == 200
        assert r.metric("retries_total", reason="disconnected") == 1
        assert r.metric("retries_total", reason="stale_connection") == 0


async def test_a_refusal_by_decode_is_no_proof_of_a_kv_transfer(router: RouterFactory) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", always="400")
    async with router(p, d) as r:
        proved_at = r.metric("kv_proved_timestamp_seconds", pod="p0")
        assert (await r.chat()).status == 400
        assert r.metric("kv_proved_timestamp_seconds", pod="p0") == proved_at
        d.always = None
        assert (await r.chat(tools=TOOLS)).status == 200
        assert r.metric("kv_proved_timestamp_seconds", pod="p0") > proved_at


# --- pods that are gone --------------------------------------------------------------------------------------
@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasewise_runtime.router.pod_registry.POD_GONE_GRACE_SECONDS", 0.02)


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"tools": TOOLS}])
async def test_a_request_to_a_pod_that_is_gone_goes_elsewhere_before_the_first_token(
    router: RouterFactory, role: str, fields: dict[str, Any]
) -> None:
    engines = [FakeEngine(r, f"{r}{i}") for r in ("prefill", "decode") for i in range(2)]
    dead = next(e for e in engines if e.role == role)
    dead.first_gate.clear()
    async with router(*engines) as r:
        tasks = [asyncio.create_task(r.chat(**fields)) for _ in range(2)]
        await until(lambda: dead.requests)
        r.server.pod_registry.remove(dead.name)
        assert [reply.status for reply in await asyncio.wait_for(asyncio.gather(*tasks), 5)] == [200, 200]
        assert r.metric("retries_total", role=role, reason="disconnected") == 1
        assert r.metric("inflight_requests") == 0
        await until(lambda: dead.aborted == 1)


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(("removed", "broken"), [(True, 1), (False, 0)], ids=["deleted", "terminating"])
async def test_a_stream_breaks_when_its_pod_is_gone_and_not_while_it_terminates(
    router: RouterFactory, removed: bool, broken: int
) -> None:
    d = FakeEngine("decode", "d0")
    d.gate.clear()
    async with router(d) as r:
        task = asyncio.create_task(r.chat(stream=True))
        await until(lambda: r.metric("ttft_seconds_count") == 1)
        if removed:
            r.server.pod_registry.remove("d0")
        else:
            r.server.pod_registry.put(d.pod(terminating=True))
            asyncio.get_running_loop().call_later(0.2, d.gate.set)  # ten times the grace of a pod that is gone
        reply = await asyncio.wait_for(task, 5)
        assert r.metric("stream_errors_total", reason="disconnected") == broken
    if removed:
        assert json.loads(reply.events[-1])["error"]["code"] == "disconnected"
    else:
        assert reply.events[-1] == "[DONE]"
