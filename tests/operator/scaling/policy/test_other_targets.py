"""A user writes other targets: what was learned from requests judged by the old ones holds no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.scaling.policy.signal_factory import TARGETS, Service, busy, make_signals, pods, pool

from phasewise_operator.scaling.types import Latency, Outcomes, Signals, SloTargets, TtftParts

LOOSE = replace(TARGETS, ttft=20.0, itl=0.2)
STABILIZATION = 60.0


def within_targets(service: Service, **changes: Any) -> Signals:
    """A load that the models find small, all targets met."""
    return busy(*service.sizes, rate=0.5, outcomes=Outcomes(met=20), **changes)


def late(service: Service) -> Signals:
    """The same, but half of the first tokens are late, behind other prompts."""
    return busy(
        *service.sizes,
        rate=0.5,
        ttft=Latency(20, 2.4, 2.1, 4.0, 4.0),
        outcomes=Outcomes(met=10, ttft_missed=10),
        parts=TtftParts(prefill=0.5, transfer=0.02, first_token=0.02, prefill_queue=1.8),
        awaiting={"decode": 3.0},
        overdue={"decode": 1.0},
    )


def grown_by_feedback() -> Service:
    service = Service(pool("prefill", 1), pool("decode", 2, min=2), stabilization=STABILIZATION)
    for _ in range(120):
        service.tick(late(service))
    assert service.sizes[0] >= 4, "measured latency asks for more than the model"
    return service


@pytest.mark.parametrize(
    ("targets", "comes_down"),
    [(TARGETS, False), (LOOSE, True), (replace(TARGETS, ttft=3.0), True), (replace(TARGETS, attainment=0.9), True)],
    ids=["the same", "loose", "another ttft", "another attainment"],
)
def test_corrections_for_other_targets_keep_no_replica(targets: SloTargets, comes_down: bool) -> None:
    service = grown_by_feedback()
    service.targets = targets
    size = service.sizes[0]
    for _ in range(round((STABILIZATION + 10) / 2)):
        service.tick(within_targets(service))
    assert (service.sizes[0] == 1) is comes_down
    assert comes_down or service.sizes[0] == size


def test_it_comes_down_late_and_not_at_once() -> None:
    service = grown_by_feedback()
    service.targets, size = LOOSE, service.sizes[0]
    for _ in range(round(STABILIZATION / 2) - 5):
        decisions = service.tick(within_targets(service))
        assert decisions["prefill"].reason == "Stabilizing"
    assert service.sizes[0] == size


def test_the_learned_models_survive_a_change_of_targets() -> None:
    service = grown_by_feedback()
    before, service.targets = service.memory, LOOSE
    service.tick(None)
    after = service.memory
    assert (after.law, after.prompts, after.outputs, after.capacity) == (
        before.law,
        before.prompts,
        before.outputs,
        before.capacity,
    )


def test_requests_judged_by_the_old_targets_neither_grow_nor_keep_a_pool() -> None:
    service = Service(pool("prefill", 4), pool("decode", 2, min=2), stabilization=20)
    service.run(4, within_targets(service))
    service.targets = replace(TARGETS, ttft=1.5)
    for _ in range(14):  # an SLO window is 30 s
        decisions = service.tick(late(service))
        assert decisions["prefill"].reason != "TtftMissed"
    assert service.sizes[0] == 2, "as the model says"


def slow(service: Service, outcomes: Outcomes) -> Signals:
    """Forty streams, at the brink of the target however few of them share a pod."""
    n = service.sizes[0]
    load = pods("decode", n, concurrency=40 / n, busy=1.0, requests=20 / n, running=40 / n, itl=0.038, tokens=10000 / n)
    return make_signals({"decode": load}, arrivals=2.0, active=40.0, outcomes=outcomes)


def test_a_pool_at_its_max_by_missed_itl_is_given_back_when_the_target_is_loosened() -> None:
    service = Service(pool("decode", 4, max=24), stabilization=STABILIZATION)
    for _ in range(150):
        service.tick(slow(service, Outcomes(met=5, itl_missed=15)))
    assert service.sizes == (24,)
    assert "raise it" in service.tick(slow(service, Outcomes(met=5, itl_missed=15)))["decode"].message
    service.targets = LOOSE
    for _ in range(round((STABILIZATION + 10) / 2)):
        service.tick(slow(service, Outcomes(met=20)))
    assert service.sizes < (24,), "as the model says"
    assert service.tick(slow(service, Outcomes(met=20)))["decode"].limit == ""


def test_after_an_slo_window_what_is_missed_counts_again() -> None:
    service = Service(pool("prefill", 2, min=2), pool("decode", 2, min=2), stabilization=STABILIZATION)
    service.run(60, within_targets(service))
    service.targets = replace(TARGETS, ttft=1.5)
    sizes: list[int] = []
    for _ in range(20):
        service.tick(late(service))
        sizes.append(service.sizes[0])
    assert set(sizes[:14]) == {2}
    assert sizes[-1] == 3
