"""The loop on real HTTP: it sees a burst at once, holds when a scrape fails, and costs nothing without traffic.

Pods are servers on loopback addresses; each answers with the samples that the test gives it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.operator.scaling.loop_stage import ADDRESSES, BOTH, KEY, Stage, child, reasons, service, until

from phasewise_operator.kinds import INFERENCE_SERVICE, POD
from phasewise_operator.render.context import Context, Images
from phasewise_operator.scaling import loop, scrape
from phasewise_operator.scaling.policy import data_quality
from phasewise_operator.scaling.types import NO_RECOMMENDATION, SizeDecision
from phasewise_runtime import contract


@pytest.mark.usefixtures("quick")
async def test_an_idle_service_is_waited_on_and_not_scraped_again_and_again(stage: Stage) -> None:
    router = stage.pods["router"]
    await until("the loop waits on the router", lambda: router.waits > 0)
    scrapes = router.scrapes
    await until("a wait has ended without a request, five times", lambda: router.waits > 5)
    assert router.scrapes == scrapes


async def test_a_burst_on_an_idle_service_makes_prefill_grow_within_five_seconds(stage: Stage) -> None:
    router = stage.pods["router"]
    await until("the loop waits on the router", lambda: router.waits > 0)
    stage.queue.done(await stage.queue.get())
    began = time.monotonic()
    router.lines |= {
        contract.METRIC_ARRIVALS: 40.0,
        contract.METRIC_ACTIVE: 40.0,
        f'{contract.METRIC_AWAITING}{{phase="prefill"}}': 40.0,
        f'{contract.METRIC_OVERDUE}{{phase="prefill"}}': 38.0,
        f'{contract.METRIC_POD_REQUESTS}{{pod="prefill-0",role="prefill"}}': 2.0,
        f'{contract.METRIC_POD_BUSY_SECONDS}{{pod="prefill-0",role="prefill"}}': 2.0,
        f'{contract.METRIC_POD_INFLIGHT_SECONDS}{{pod="prefill-0",role="prefill"}}': 60.0,
    }
    router.request_came.set()
    await until("prefill is to grow", lambda: stage.recommendation.decisions["prefill"].desired > 1)
    assert time.monotonic() - began < 5
    assert await asyncio.wait_for(stage.queue.get(), 1) == KEY, "the service is queued for the reconciler"


@pytest.mark.usefixtures("quick")
async def test_the_reconciler_is_not_asked_too_early(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_quality, "MIN_WINDOW", 60.0)
    await until("rounds are made", lambda: stage.pods["router"].scrapes > 5)
    assert reasons(stage) == {"NoSignal"}
    assert len(stage.queue) == 0


@pytest.mark.usefixtures("quick")
async def test_the_reconciler_is_asked_for_each_generation_that_a_size_was_decided_for(stage: Stage) -> None:
    """Until then it may have held what an older generation's decision was to change."""
    await until("sizes are decided", lambda: len(stage.queue) == 1 and reasons(stage) != {"NoSignal"})
    stage.queue.done(await stage.queue.get())
    before = stage.recommendation.decisions
    stage.apply(service(generation=2))
    await until("a round with the new spec", lambda: stage.recommendation.generation == 2)
    after = stage.recommendation.decisions
    assert {role: d.desired for role, d in after.items()} == {role: d.desired for role, d in before.items()}
    assert await asyncio.wait_for(stage.queue.get(), 1) == KEY


def router_pod(ready: bool, version: str, name: str = "router-0") -> dict[str, Any]:
    status = {"podIP": ADDRESSES["router"], "conditions": [{"type": "Ready", "status": str(ready)}]}
    return child(name, "router", status=status, metadata={"resourceVersion": version})


@pytest.mark.usefixtures("quick")
async def test_a_service_without_a_router_is_left_alone_until_one_is_ready(stage: Stage) -> None:
    stage.store.put(POD, router_pod(False, "2"))
    engine = stage.pods["decode"]
    await until("the router is known not to be ready", lambda: reasons(stage) == {"NoRouter"})
    scrapes = engine.scrapes
    for version in range(3, 20):
        stage.store.put(POD, router_pod(False, str(version)))
        stage.loop.service_changed(KEY)
        await asyncio.sleep(0.02)
    assert engine.scrapes - scrapes <= 1, "other changes of its objects are not asked about"
    stage.store.put(POD, router_pod(True, "99"))
    stage.loop.service_changed(KEY)
    await until("rounds go on", lambda: reasons(stage) != {"NoRouter"}, seconds=loop.STARTING_SECONDS / 2)


@pytest.mark.usefixtures("quick")
async def test_a_router_more_of_an_idle_service_is_waited_on_too(stage: Stage) -> None:
    """It may get all requests, while the others get none for minutes."""
    router = stage.pods["router"]
    await until("the loop waits on the router", lambda: router.waits > 0)
    scrapes = router.scrapes
    for number in range(5):
        stage.store.put(POD, router_pod(False, str(number + 2), "router-1"))
        stage.loop.service_changed(KEY)
        await asyncio.sleep(0.02)
    assert router.scrapes == scrapes, "one that is not ready gets no requests"
    stage.store.put(POD, router_pod(True, "99", "router-1"))
    stage.loop.service_changed(KEY)
    await until("both are scraped", lambda: router.scrapes >= scrapes + 2, seconds=5)


@pytest.mark.usefixtures("quick")
async def test_a_pool_whose_scrapes_fail_is_held_with_the_reason(stage: Stage) -> None:
    stage.pods["prefill"].status = 500

    def decision() -> SizeDecision | None:
        return stage.recommendation.decisions.get("prefill")

    await until("the reason is there", lambda: (now := decision()) and now.reason == "Unreadable")
    now = decision()
    assert now
    assert (now.desired, now.sufficient) == (1, False)


@pytest.mark.usefixtures("quick")
async def test_a_service_whose_expositions_take_long_to_parse_is_looked_at_less_often(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with a share of the event loop that makes any parsing long."""
    monkeypatch.setattr(scrape, "PARSE_SHARE", 1e-5)
    asked: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        asked.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", recorded)
    await until("a round has ended", lambda: any(seconds > 1 for seconds in asked))


# --- specs come from the watch -----------------------------------------------------------------------------


def leaving(live: dict[str, Any]) -> dict[str, Any]:
    meta = {**live["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "2"}
    return {**live, "metadata": meta}


def is_followed() -> bool:
    return any(task.get_name() == f"scaling {KEY}" for task in asyncio.all_tasks())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("gone", [True, False], ids=["deleted", "being deleted"])
async def test_a_service_that_is_deleted_is_followed_no_longer(gone: bool, stage: Stage) -> None:
    await until("a first round", lambda: stage.recommendation.signals is not None)
    assert is_followed()
    if gone:
        stage.store.drop(INFERENCE_SERVICE, service())
    else:
        stage.store.put(INFERENCE_SERVICE, leaving(service()))
    stage.loop.service_changed(KEY)
    assert stage.recommendation is NO_RECOMMENDATION
    await until("its follower has ended", lambda: not is_followed())


@pytest.mark.usefixtures("quick")
async def test_a_service_that_is_created_again_is_another_service(stage: Stage) -> None:
    await until("a first round", lambda: stage.recommendation.signals is not None)
    stage.store.drop(INFERENCE_SERVICE, service())
    stage.apply(service(generation=2, uid="s2"))
    assert stage.recommendation is NO_RECOMMENDATION
    await until("a first round of the new one", lambda: stage.loop.recommendation(KEY, "s2").signals is not None)


@pytest.mark.usefixtures("quick")
async def test_a_spec_is_parsed_once_for_each_generation(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parse = Context.of

    def counting(live: Any, images: Images) -> Context:
        parsed.append(live["metadata"]["generation"])
        return parse(live, images)

    monkeypatch.setattr(loop.Context, "of", counting)
    stage.pods["router"].lines[contract.METRIC_ACTIVE] = 1.0  # so that rounds go on
    for generation in (2, 2, 3):
        stage.apply(service(generation))
        scrapes = stage.pods["router"].scrapes
        await until("more rounds", lambda scrapes=scrapes: stage.pods["router"].scrapes > scrapes + 2)
    assert parsed == [2, 3]


@pytest.mark.usefixtures("quick")
async def test_after_a_spec_that_cannot_be_parsed_the_next_one_is_followed(stage: Stage) -> None:
    await until("a first round", lambda: stage.recommendation.signals is not None)
    broken = service(2)
    broken["spec"] = {}
    stage.apply(broken)
    stage.apply(service(3))
    await until("a round with the new spec", lambda: stage.recommendation.generation == 3)


@pytest.mark.parametrize("mode", ["Manual", "External"])
@pytest.mark.usefixtures("quick")
async def test_where_others_decide_an_idle_service_is_measured_at_once_and_no_size_decided(
    mode: str, stage: Stage
) -> None:
    await until("the loop waits on the router", lambda: stage.pods["router"].waits > 0)
    assert stage.recommendation.decisions != {}
    stage.apply(service(generation=2, mode=mode))
    stage.routers_say(prefill=True, decode=True)
    await until("no size is decided", lambda: stage.recommendation.decisions == {})
    assert stage.recommendation.signals is not None
    assert stage.recommendation.generation == 2
    assert stage.evidence.proved == BOTH
