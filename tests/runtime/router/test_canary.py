"""Canaries before requests: what takes no traffic yet, what is found out, and that requests go round what fails."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from tests.runtime.router.conftest import RouterFactory, is_proved
from tests.runtime.router.fake_answers import BYTES
from tests.runtime.router.fake_engine import FakeEngine, pair
from tests.runtime.router.faults import complete, failed, four, many, state
from tests.runtime.waiting import until

from phasewise_runtime.router import kv_paths as kp


# --- before any traffic --------------------------------------------------------------------------------------
async def test_a_pair_is_proved_with_the_bytes_that_its_connector_moved(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        assert state(r, "proved") == 1
        for name in ("p0", "d0"):
            assert r.metric("kv_transfer_ok", pod=name) == 1
            assert r.metric("kv_canary_bytes", pod=name) == BYTES
            assert r.metric("kv_proved_timestamp_seconds", pod=name) > 1.7e9
        assert r.metric("kv_canaries_total", result="proved") == 1
        assert r.metric("pod_requests_total") == r.metric("arrivals_total") == 0, "no client's requests"
    prefill, (alone, with_kv) = p.kv.canaries, d.kv.canaries
    assert len(prefill) == 1
    assert "kv_transfer_params" not in alone
    assert with_kv["kv_transfer_params"]["remote_engine_id"] == "p0"
    assert alone["cache_salt"] != with_kv["cache_salt"] == prefill[0]["cache_salt"]


async def test_an_engine_without_counters_is_proved_by_its_answer_and_its_bytes_are_unknown(
    router: RouterFactory,
) -> None:
    p, d = pair()
    d.kv.counted = False
    async with router(p, d) as r:
        assert state(r, "proved") == 1
        assert "kv_canary_bytes{" not in (await r.admin("/metrics")).text


async def test_requests_at_the_very_start_wait_for_the_proof(router: RouterFactory) -> None:
    p, d = pair()
    d.kv.gate.clear()
    async with router(p, d, proved=False) as r:
        task = asyncio.create_task(r.chat(stream=True))
        await until(lambda: d.kv.canaries and r.metric("awaiting_first_token", phase="queue") == 1)
        assert not d.requests
        d.kv.gate.set()
        assert complete(await task)
    assert (len(p.requests), len(d.requests)) == (1, 1)


@pytest.mark.usefixtures("short")
async def test_a_proof_that_takes_long_does_not_keep_requests_from_being_served(router: RouterFactory) -> None:
    p, d = pair()
    p.kv.gate.clear()
    async with router(p, d, proved=False) as r:
        assert complete(await r.chat(stream=True))
        assert r.metric("decode_only_total", reason="kv_not_proved") == 1
    assert not p.requests


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_new_pod_takes_no_traffic_before_its_proof(router: RouterFactory, role: str) -> None:
    p, d = pair()
    new = FakeEngine(role, "new")
    new.kv.gate.clear()
    async with router(p, d, new, proved=False) as r:
        await until(lambda: state(r, "proved") == 1 and new.kv.canaries)
        assert all(complete(reply) for reply in await many(r, 12))
        assert not new.requests
        new.kv.gate.set()
        await until(lambda: state(r, "proved") == 2)
        await many(r, 12)
        assert len(new.requests) >= 4
        assert r.metric("decode_only_total") == 0


async def test_a_restarted_engine_is_proved_again_before_it_takes_traffic(router: RouterFactory) -> None:
    engines = four()
    async with router(*engines) as r:
        old = engines[0]
        old.kv.gate.clear()
        before = len(old.kv.canaries)
        r.server.pod_registry.put(old.pod(ready=False))
        r.server.pod_registry.put(replace(old.pod(), container="restarted"))
        await until(lambda: len(old.kv.canaries) > before)
        assert all(complete(reply) for reply in await many(r, 8))
        assert not old.requests
        old.kv.gate.set()
        await until(lambda: state(r, "proved") == 4)
        await many(r, 8)
        assert old.requests


async def test_a_pod_that_is_not_ready_for_a_moment_stays_proved(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        r.server.pod_registry.put(d.pod(ready=False))
        r.server.pod_registry.put(d.pod())
        assert complete(await r.chat())
        assert r.metric("decode_only_total") == 0
    assert len(p.kv.canaries) == 1


@pytest.mark.parametrize("aggregated", [True, False])
async def test_a_decode_pod_without_prefill_pods_is_warmed_alone(router: RouterFactory, aggregated: bool) -> None:
    old, new = (FakeEngine("decode", n, aggregated=aggregated) for n in ("old", "new"))
    new.kv.gate.clear()
    async with router(old, new, proved=False) as r:
        await until(lambda: is_proved(r.server, old))
        await many(r, 6)
        assert not new.requests
        new.kv.gate.set()
        await until(lambda: is_proved(r.server, new))
        await many(r, 6)
        assert new.requests
    assert [c.get("kv_transfer_params") for c in new.kv.canaries] == [None]


# --- what a canary finds -------------------------------------------------------------------------------------
FOUND: list[tuple[str, str, str]] = [
    ("prefill", "no_kv", kp.KV_PARAMS_MISSING),
    ("prefill", "500", kp.PREFILL_FAILED),
    ("path", "wrong", kp.WRONG_ANSWER),
    ("path", "recompute", kp.RECOMPUTED),
    ("path", "500", kp.KV_NOT_LOADED),
    ("path", "hang", kp.TRANSFER_TIMEOUT),
    ("count", "", kp.PROMPT_MISMATCH),
]


def break_path(p: FakeEngine, d: FakeEngine, where: str, fault: str) -> None:
    if where == "prefill":
        p.kv.fault = fault
    elif where == "path":
        d.kv.bad_peers[p.name] = fault
    else:
        p.kv.prompt_tokens += 1


@pytest.mark.usefixtures("short", "no_retry")
@pytest.mark.parametrize(("where", "fault", "reason"), FOUND, ids=[c[2] for c in FOUND])
async def test_a_path_that_fails_is_said_and_every_request_is_served_without_it(
    router: RouterFactory, where: str, fault: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    p, d = pair()
    break_path(p, d, where, fault)
    async with router(p, d, proved=False) as r:
        await failed(r, reason)
        assert r.metric("kv_failed_path", prefill="p0", decode="d0", reason=reason) == 1
        assert r.metric("kv_transfer_ok", pod="p0") == r.metric("kv_transfer_ok", pod="d0") == 0
        assert "kv_transfer_ok" in (await r.admin("/metrics")).text
        assert all(complete(reply) for reply in await many(r, 4))
        assert r.metric("decode_only_total", reason="kv_failed") == 4
    assert not p.requests
    assert any(rec.message.startswith("KV transfer fails") for rec in caplog.records)


@pytest.mark.usefixtures("short", "no_retry")
async def test_one_bad_path_of_four_is_avoided_and_all_pods_serve(router: RouterFactory) -> None:
    engines = four()
    d0 = engines[2]
    d0.kv.bad_peers["p0"] = "wrong"
    async with router(*engines) as r:
        assert (state(r, "failed"), state(r, "proved")) == (1, 3)
        assert all(complete(reply) for reply in await many(r, 24))
        assert r.metric("decode_only_total") == 0
        assert r.metric("kv_transfer_ok") == 4, "each pod has a path"
    peers = {body["kv_transfer_params"]["remote_engine_id"] for body in d0.bodies}
    assert peers == {"p1"}
    assert all(e.requests for e in engines)


@pytest.mark.usefixtures("short")
async def test_a_path_that_works_again_is_used_again(router: RouterFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasewise_runtime.router.kv_paths.FIRST_BACKOFF", 0.05)
    p, d = pair()
    d.kv.bad_peers["p0"] = "recompute"
    async with router(p, d) as r:
        assert state(r, "failed") == 1
        d.kv.bad_peers.clear()
        await until(lambda: state(r, "proved") == 1)
        await r.chat()
    assert len(p.requests) == 1


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", ["400", "no_logprobs"])
async def test_an_engine_that_refuses_canaries_still_gets_kv(router: RouterFactory, fault: str) -> None:
    """Without log probabilities answers can only be equal or not; without an answer requests prove the path."""
    p, d = pair()
    d.kv.fault = fault
    async with router(p, d) as r:
        assert state(r, "proved") == (fault == "no_logprobs")
        assert complete(await r.chat())
        assert r.metric("decode_only_total") == 0
        assert state(r, "proved") == 1


@pytest.mark.usefixtures("short")
async def test_a_slow_or_silent_decode_engine_says_nothing_of_the_path(router: RouterFactory) -> None:
    p, d = pair()
    d.kv.fault = "hang"
    async with router(p, d, proved=False) as r:
        await until(lambda: r.metric("kv_canaries_total", result="no_result") == 1)
        assert state(r, "unproved") == 1
        assert complete(await r.chat()), "though its canaries fail"


async def test_series_of_paths_go_with_their_pods(router: RouterFactory, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    p, d = pair()
    d.kv.bad_peers["p0"] = "wrong"
    async with router(p, d) as r:
        r.server.pod_registry.remove("p0")
        page = (await r.admin("/metrics")).text
        assert 'p0"' not in "".join(line for line in page.splitlines() if "_kv_" in line)
    ended = [rec for rec in caplog.records if rec.message == "canary ended"]
    assert {rec.__dict__["result"] for rec in ended} == {kp.WRONG_ANSWER}
