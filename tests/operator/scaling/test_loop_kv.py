"""The loop asks the routers how KV transfer goes: at once under traffic, and while a proof is awaited without."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.operator.scaling.loop_stage import ADDRESSES, BOTH, KEY, Stage, child, reasons, service, until

from phasewise_operator.kinds import POD
from phasewise_operator.scaling import loop
from phasewise_operator.scaling.signals.kv_evidence import NO_EVIDENCE, FailedPath
from phasewise_runtime import contract


async def test_a_path_that_fails_under_traffic_is_seen_and_the_service_queued_within_a_round(stage: Stage) -> None:
    stage.pods["router"].lines[contract.METRIC_ACTIVE] = 1.0  # so that rounds go on
    stage.routers_say(prefill=True, decode=True)
    await until("the pods are proved", lambda: stage.evidence.proved == BOTH)
    await until("sizes are decided", lambda: len(stage.queue) == 1 and reasons(stage) != {"NoSignal"})
    stage.queue.done(await stage.queue.get())
    stage.routers_say(prefill=False, decode=False)
    began = time.monotonic()
    assert await asyncio.wait_for(stage.queue.get(), loop.FIGURES_SECONDS) == KEY
    assert stage.evidence.failed == (FailedPath("prefill-0", "decode-0", "recomputed"),)
    assert time.monotonic() - began < 10


@pytest.mark.usefixtures("quick")
async def test_on_an_idle_service_proofs_are_read_while_they_are_awaited_and_not_after(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PROOF_SECONDS", 0.05)
    router = stage.pods["router"]
    stage.routers_say()
    stage.apply(service(2))
    await until("the router is asked again and again", lambda: stage.evidence.proving is True and router.scrapes > 5)
    stage.routers_say(prefill=True, decode=True)
    await until("the pods are proved", lambda: stage.evidence.proved == BOTH)
    scrapes, waits = router.scrapes, router.waits
    await until("the router is waited on", lambda: router.waits > waits + 5)
    assert router.scrapes <= scrapes + 2


@pytest.mark.usefixtures("quick")
async def test_an_engine_pod_more_of_an_idle_service_is_looked_at_at_once(stage: Stage) -> None:
    router = stage.pods["router"]
    stage.routers_say(prefill=True, decode=True)
    stage.apply(service(2))
    await until("the pods are proved", lambda: stage.evidence.proved == BOTH)
    waits = router.waits
    await until("the router is waited on", lambda: router.waits > waits + 5)
    scrapes = router.scrapes
    status = {"podIP": ADDRESSES["decode"], "conditions": [{"type": "Ready", "status": "True"}]}
    stage.store.put(POD, child("decode-1", "decode", status=status))
    stage.loop.service_changed(KEY)
    await until("a round is made", lambda: router.scrapes > scrapes, seconds=5)


@pytest.mark.usefixtures("quick")
async def test_before_the_routers_are_read_nothing_is_proved_and_after_long_that_is_taken_for_an_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pods["router"].status = 500
    await until("a round without the router", lambda: stage.recommendation.signals is not None)
    assert stage.evidence.proved == frozenset()
    monkeypatch.setattr(loop, "SILENT_SECONDS", 0.0)
    stage.apply(service(2))
    await until("rollouts go on without it", lambda: stage.evidence.proved is None)
    assert stage.loop.kv_evidence(KEY, "of another service of this name") is NO_EVIDENCE
