"""What the models learn and ask for, without the policy around them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.scaling.policy.signal_factory import TARGETS, busy, learned_law, load, pool

from phasewise_operator.scaling.policy import decode, prefill
from phasewise_operator.scaling.policy.decode import Outputs, StreamCapacity
from phasewise_operator.scaling.policy.load import PoolLoad, aggregate
from phasewise_operator.scaling.policy.prefill import Prompts
from phasewise_operator.scaling.policy.sizing import cap_step
from phasewise_operator.scaling.types import Coverage, TtftParts


def test_sums_are_scaled_by_what_was_not_read() -> None:
    seen = busy(4, 4, rate=8.0)
    half = replace(seen, routers=Coverage(2, 3))
    assert aggregate(half).arrivals == pytest.approx(12.0)
    assert aggregate(half).decode.requests == pytest.approx(1.5 * aggregate(seen).decode.requests)
    assert aggregate(half).prefill.busy == pytest.approx(4.0), "a pod has no more time than there is"


@pytest.mark.parametrize(
    ("busy_pods", "requests", "expected"),
    [(1.0, 20.0, 0.5), (0.1, 2.0, 0.5), (3.0, 10.0, 3.0)],
)
def test_the_cost_of_a_prompt_is_busy_time_a_request(busy_pods: float, requests: float, expected: float) -> None:
    seen = load(prefill=PoolLoad(busy=busy_pods, requests=requests))
    assert prefill.learn(Prompts(), seen, TtftParts(), 10.0, False).seconds == pytest.approx(expected)


def test_a_prompt_longer_than_the_window_costs_all_its_time() -> None:
    known = Prompts()
    for i in range(60):  # 20 s each, one after the other, looked at every 2 s
        ended = sum(1.0 for end in range(20, 200, 20) if 2 * i - 10 < end <= 2 * i)
        known = prefill.learn(known, load(prefill=PoolLoad(busy=1.0, requests=ended)), TtftParts(), 2.0, False)
    assert known.seconds == pytest.approx(20, rel=0.3)


def test_a_stall_of_prefill_does_not_look_like_prompts_that_take_no_prefill() -> None:
    known = Prompts(busy=5, requests=10, taken=50, served=50)
    stalled = load(prefill=PoolLoad(busy=1.0, requests=1.0), decode=PoolLoad(requests=20.0))
    for _ in range(30):
        known = prefill.learn(known, stalled, TtftParts(), 2.0, True)
    assert known.share == 1.0


@pytest.mark.parametrize(
    ("attainment", "ttft", "size", "reason"),
    [
        (0.95, 2.0, 3, "PrefillLoad"),
        (0.95, 8.0, 2, "PrefillLoad"),
        (1.0, 2.0, 4, "PrefillLoad"),
        (0.95, 0.5, 1, "PromptTooLong"),
    ],
)
def test_prefill_is_sized_for_the_target(attainment: float, ttft: float, size: int, reason: str) -> None:
    targets = replace(TARGETS, attainment=attainment, ttft=ttft)
    need = prefill.need(
        load(), targets, pool("prefill"), arrivals=2.4, prompts=Prompts(busy=61, requests=100), behind=0.0
    )
    assert (need.replicas, need.reason, need.curable) == (size, reason, reason == "PrefillLoad")
    assert need.with_slack >= need.replicas


PACE = 0.036


@pytest.mark.parametrize(
    ("case", "pods", "lasting", "expected"),
    [
        ("at the pace", PoolLoad(concurrency=26, tokens=7222, slowest=PACE), 26, 26),
        ("quicker: fewer in flight than there would be", PoolLoad(concurrency=10, tokens=7222, slowest=0.014), 0, 26),
        ("slower, all of it lasts", PoolLoad(concurrency=60, tokens=8571, slowest=0.07), 60, 60),
        ("slower, piled up", PoolLoad(concurrency=400, tokens=9756, slowest=0.41), 86, 86),
        ("slower, length not known", PoolLoad(concurrency=60, tokens=8571, slowest=0.07), 0, 60),
    ],
)
def test_streams_at_the_pace_that_pods_are_sized_for(
    case: str, pods: PoolLoad, lasting: float, expected: float
) -> None:
    assert decode.streams(load(decode=pods), PACE, lasting) == pytest.approx(expected, rel=0.01), case


@pytest.mark.parametrize(
    ("capacity", "size"),
    [(None, 2), (StreamCapacity(10, 0), 4)],
)
def test_a_replica_holds_what_itl_and_capacity_allow(capacity: StreamCapacity | None, size: int) -> None:
    pods = PoolLoad(concurrency=30, tokens=8333, slowest=PACE)
    law = learned_law(floor=0.010, slope=0.001, streams=[1, 39] * 50)
    need = decode.need(
        load(decode=pods),
        TARGETS,
        pool("decode", 2),
        arrivals=1.0,
        outputs=Outputs(),
        law=law,
        capacity=capacity,
        blocked=0.0,
    )
    assert (need.replicas, need.reason) == (size, "DecodeLoad")


def test_thin_evidence_doubles_at_most() -> None:
    assert [cap_step(n, pool("decode", 3)) for n in (2, 6, 50)] == [2, 6, 6]
    assert cap_step(50, pool("decode", 8, ready=3)) == 8, "what was asked for stays"


@pytest.mark.parametrize(("arrivals", "size"), [(0.1, 1), (0.2, 2), (1.0, 5)])
def test_never_more_servers_than_customers(arrivals: float, size: int) -> None:
    seen = load(arrivals=arrivals, awaiting={"prefill": 1.0})
    need = prefill.need(
        seen, TARGETS, pool("prefill"), arrivals=arrivals, prompts=Prompts(busy=150, requests=100), behind=0.0
    )
    assert need.replicas == size
