"""ITL that something else than streams has made: decode neither grows nor shrinks for what its pods disprove."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.scaling.policy.signal_factory import TARGETS, Service, learned_law, load, make_signals, pods, pool
from tests.operator.scaling.policy.simulator import Simulator
from tests.operator.scaling.policy.simulator_parts import Shape

from phasewise_operator.scaling.policy import decode
from phasewise_operator.scaling.policy.decode import Outputs, StreamCapacity
from phasewise_operator.scaling.policy.itl_law import ItlLaw
from phasewise_operator.scaling.policy.load import PoolLoad
from phasewise_operator.scaling.types import Coverage, PodLoad, PoolSignals, Signals, SloTargets

ITL = 0.04


def pool_of(number: int, each: float, itl: float, waiting: float = 0.0, busy: float | None = None) -> Signals:
    """Decode pods with streams of 100 tokens; `waiting`: prompts still in prefill."""
    rate = number * each / (100 * itl)
    shared: dict[str, Any] = {
        "concurrency": each,
        "busy": min(1.0, each) if busy is None else busy,
        "requests": rate * 10 / number,
        "running": each,
    }
    streams = pods("decode", number, **shared, itl=itl, tokens=each / itl * 10, kv_usage=0.1)
    prompts = pods("prefill", 1, concurrency=0.1, busy=0.1, requests=5.0)
    awaiting = {"prefill": waiting}
    return make_signals({"prefill": prompts, "decode": streams}, arrivals=rate, active=number * each, awaiting=awaiting)


def service(decode_pods: int) -> Service:
    return Service(pool("prefill"), pool("decode", decode_pods, max=40), stabilization=60)


def test_an_extrapolation_from_a_single_stream_adds_no_replica_while_itl_is_met() -> None:
    """Alone a stream has 30 ms; that half of it grows with the streams is a guess until more are seen."""
    found = service(1)
    found.run(60, pool_of(1, 0.5, 0.030))
    found.run(20, pool_of(1, 1.0, 0.031, waiting=20.0))
    assert found.sizes[1] == 1
    found.run(4, pool_of(1, 12.0, 0.045, waiting=20.0))
    assert found.sizes[1] > 1, "seen, not guessed"


def test_streams_that_have_just_come_are_held_against_the_gaps_of_their_own_time() -> None:
    """Of a load window that was half idle: its mean of streams is no aggregate of what made ITL rise."""
    found = service(1)
    found.run(60, pool_of(1, 0.2, 0.018))
    for streams, busy, itl in ((0.6, 0.2, 0.021), (2.2, 0.4, 0.026), (4.8, 0.6, 0.031)):
        found.run(2, pool_of(1, streams, itl, busy=busy))
    assert found.sizes[1] == 1, "eight streams at 31 ms of 40"


@pytest.mark.parametrize("growth", [10, 40])
def test_requests_that_wait_for_room_are_no_streams(growth: float) -> None:
    """An engine that runs ten at most has ITL no worse however many wait, and more wait now than did on average."""
    law = ItlLaw()
    for running, waiting in ((2, 0), (6, 0), (10, 0), (10, growth), (10, 2 * growth), (10, 3 * growth)):
        requests: dict[str, Any] = {"concurrency": running + waiting / 2, "running": running, "blocked": waiting}
        full = pods("decode", 1, **requests, busy=1.0, itl=0.01 + 0.002 * running, tokens=1e4)
        law = decode.learn(law, full, 10.0, 10.0)
    assert law.alone == pytest.approx(0.012, rel=0.15)


def test_noise_of_streams_that_do_not_share_a_pod_makes_no_replica() -> None:
    """A few tokens at 200 ms while prompts pile up before prefill: a second pod would be as slow."""
    found = service(1)
    found.run(60, pool_of(1, 0.4, 0.030))
    found.run(20, pool_of(1, 0.4, 0.200, waiting=20.0))
    assert found.sizes[1] == 1


@pytest.mark.parametrize("slow", [30, 120, 600])
def test_a_slow_time_does_not_say_that_the_target_is_out_of_reach_for_ever(slow: float) -> None:
    found = service(4)
    found.run(slow, pool_of(4, 1.5, 0.060))
    found.change("decode", desired=4, ready=4)
    decision = found.run(4, pool_of(4, 15.0, 0.025))["decode"]
    assert (decision.desired, decision.reason) != (1, "ItlUnattainable")
    assert found.sizes[1] == 4
    found.run(120, pool_of(4, 15.0, 0.025))
    assert 2 <= found.sizes[1] <= 4


def test_a_target_out_of_reach_still_bounds_itl() -> None:
    """Alone 50 ms: no replica meets 40 ms, and yet ITL is not left to grow without end."""
    found = service(1)
    found.run(120, pool_of(1, 1.0, 0.050))
    assert found.sizes[1] == 1
    decision = found.run(30, pool_of(1, 40.0, 0.200))["decode"]
    assert decision.reason == "ItlUnattainable"
    assert found.sizes[1] > 1


@pytest.mark.parametrize(("each", "itl"), [(3.0, 0.030), (5.0, 0.022)])
def test_a_pool_does_not_shrink_to_what_no_pod_has_shown(each: float, itl: float) -> None:
    found = service(10)
    found.run(300, pool_of(10, each, itl))
    found.change("decode", desired=10, ready=10)
    seen: list[int] = []
    for _ in range(90):
        found.tick(pool_of(10, 15.0, 0.025), obey=False)
        seen.append(found.tick(pool_of(10, 15.0, 0.025), obey=False)["decode"].desired)
    assert min(seen) >= 5


def test_one_pod_full_of_a_giant_is_not_what_the_others_hold() -> None:
    found = Service(pool("prefill"), pool("decode", 10, max=64), stabilization=60)
    calm = pool_of(10, 20.0, 0.025)
    found.run(120, calm)
    before = found.sizes[1]
    giant = PodLoad(concurrency=4, busy=1, requests=1, running=2, blocked=2, kv_usage=0.95, itl=0.02, tokens=1000)
    full = PoolSignals(Coverage(10, 10), {**calm.pools["decode"].pods, "decode-3": giant})
    stuck = replace(calm, pools={**calm.pools, "decode": full}, overdue={"decode": 1.0}, awaiting={"decode": 2.0})
    found.run(10, stuck)
    assert found.sizes[1] <= before + 1
    assert found.memory.capacity is None


def test_the_capacity_of_pods_that_are_all_full_is_learned() -> None:
    streams = PoolLoad(concurrency=40, capacity=16.0, fullest=20.0, blocked=8)
    assert decode.learn_capacity(None, load(decode=streams), 8.0, 5.0) == StreamCapacity(20.0, 5.0)


def test_close_to_what_a_stream_alone_has_a_pool_at_most_doubles() -> None:
    """39 ms alone under 40 ms: a small error of the floor is many replicas."""
    law = learned_law(floor=0.036, slope=0.0032, streams=[10, 30] * 50)
    streams = PoolLoad(concurrency=60, busy=2, tokens=6000, slowest=0.1)
    need = decode.need(
        load(decode=streams),
        SloTargets(2.0, ITL, 0.95),
        pool("decode", 2),
        arrivals=1.0,
        outputs=Outputs(),
        law=law,
        capacity=None,
        blocked=0.0,
    )
    assert need.replicas == 4


@pytest.mark.parametrize(("size", "rate", "right"), [(4, 2.0, 1), (10, 5.0, 2)])
def test_a_quiet_pool_shrinks_though_the_operator_has_just_started(size: int, rate: float, right: int) -> None:
    """No pod has shown as many streams as fewer pods would have: half of them go, and then the others show it."""
    simulator = Simulator(
        Shape(rate=lambda _: rate, output=200),
        TARGETS,
        {"prefill": (1, 20), "decode": (1, 20)},
        start={"prefill": 2, "decode": size},
    )
    simulator.run(900)
    assert simulator.desired["decode"] == right
    # Prefill is too small as it begins, and the operator watches for two rounds before it acts.
    assert simulator.attainment(0, 840) > 0.975


def test_a_target_lowered_out_of_reach_leaves_what_keeps_itl_near_a_stream_alone() -> None:
    """50 ms alone; 20 requests/s of 200 tokens are some 16 pods for 75 ms."""
    simulator = Simulator(
        Shape(rate=lambda _: 20.0, prompt=150, output=200, itl_floor=0.050),
        replace(TARGETS, itl=0.2),
        {"prefill": (1, 20), "decode": (1, 40)},
        start={"prefill": 3, "decode": 14},
    )
    simulator.run(400)
    simulator.targets = TARGETS
    simulator.run(600)
    each = sum(len(p.streams) for p in simulator.pods["decode"]) / simulator.desired["decode"]
    assert 0.050 + 0.001 * each < 0.085
    assert simulator.rows[-1].decisions["decode"].reason == "ItlUnattainable"


def test_where_most_pods_are_full_they_need_room_though_another_runs_many_short_streams() -> None:
    full = PodLoad(concurrency=50, busy=1, running=30, blocked=20, kv_usage=0.97, itl=0.03, tokens=10_000)
    short = PodLoad(concurrency=100, busy=1, running=100, kv_usage=0.3, itl=0.03, tokens=30_000)
    decode_pods = PoolSignals(Coverage(4, 4), {f"decode-{n}": short if n == 3 else full for n in range(4)})
    found = Service(pool("prefill"), pool("decode", 4))
    prompts = pods("prefill", 1, concurrency=0.1, busy=0.1, requests=5.0)
    seen = make_signals({"prefill": prompts, "decode": decode_pods}, arrivals=5.0, active=250, overdue={"decode": 60.0})
    assert found.tick(seen)["decode"].reason == "DecodeAdmission"
    assert found.sizes[1] > 4
