"""Invariants of the policy, whatever the signals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.scaling.policy.signal_factory import TARGETS

from phasewise_operator.scaling.policy.decide import Memory, decide
from phasewise_operator.scaling.policy.reasons import REASONS
from phasewise_operator.scaling.types import (
    Coverage,
    Latency,
    Outcomes,
    PodLoad,
    PoolSignals,
    PoolState,
    Signals,
    TtftParts,
)

few = st.integers(0, 6)
amount = st.one_of(st.just(0.0), st.floats(0.001, 500))
share = st.floats(0, 1)
maybe = st.one_of(st.none(), amount)
phases = st.fixed_dictionaries({"queue": amount, "prefill": amount, "decode": amount})


@st.composite
def pods(draw: st.DrawFn) -> PoolSignals:
    of = draw(few)
    read = draw(st.integers(0, of))
    loads = st.builds(
        PodLoad,
        concurrency=maybe,
        busy=st.one_of(st.none(), share),
        requests=amount,
        running=maybe,
        waiting=maybe,
        blocked=maybe,
        kv_usage=st.one_of(st.none(), share),
        itl=st.one_of(st.none(), st.floats(0.0001, 2)),
        tokens=amount,
    )
    return PoolSignals(Coverage(read, of), {str(i): draw(loads) for i in range(read)})


@st.composite
def any_signals(draw: st.DrawFn, roles: tuple[str, ...]) -> Signals | None:
    if draw(st.integers(0, 9)) == 0:
        return None
    value = draw(amount)
    return Signals(
        at=-draw(st.sampled_from([0.0, 1.0, 11.0])),
        load_window=draw(st.sampled_from([0.0, 2.0, 10.0, 10.0, 10.0])),
        slo_window=30.0,
        routers=Coverage(draw(st.integers(1, 3)), 3),
        pools={role: draw(pods()) for role in roles},
        arrivals=draw(amount),
        active=draw(amount),
        queued=draw(amount),
        awaiting=draw(phases),
        overdue=draw(phases),
        outcomes=Outcomes(draw(amount), draw(amount), draw(amount), draw(amount), draw(amount)),
        parts=TtftParts(*(draw(maybe) for _ in range(6))),
        ttft=draw(st.one_of(st.none(), st.just(Latency(50, value, value, value, value)))),
    )


@st.composite
def pool(draw: st.DrawFn, role: str) -> PoolState:
    lo, desired = draw(few), draw(st.integers(0, 12))
    return PoolState(
        role,
        min=lo,
        max=lo + draw(few),
        desired=desired,
        ready=draw(st.integers(0, desired + 1)),
        unschedulable=draw(st.sampled_from([0, 0, 0, 2])),
        gpus=draw(st.integers(0, 4)),
        gpus_beside=draw(st.sampled_from([0, 0, 5])),
    )


@st.composite
def stories(draw: st.DrawFn) -> dict[str, Any]:
    roles = draw(st.sampled_from([("prefill", "decode"), ("decode",)]))
    return {
        "pools": [draw(pool(role)) for role in roles],
        "signals": draw(st.lists(any_signals(roles), min_size=1, max_size=6)),
        "budget": draw(st.one_of(st.none(), st.integers(0, 60))),
        "stabilization": draw(st.sampled_from([0.0, 5.0, 300.0])),
    }


def within_budget(pools: list[PoolState], sizes: dict[str, int], budget: int | None) -> bool:
    held = sum(p.desired * p.gpus + p.gpus_beside for p in pools)
    asked = sum(sizes[p.role] * p.gpus + p.gpus_beside for p in pools)
    stays, minima = sum(sizes[p.role] * p.gpus for p in pools), sum(p.min * p.gpus for p in pools)
    return budget is None or (asked <= max(budget, held) and stays <= max(budget, minima))


@settings(max_examples=150, deadline=None)
@given(stories())
def test_at_every_step(story: dict[str, Any]) -> None:
    pools, memory, now, began = story["pools"], Memory(), 100.0, 102.0
    budget, stabilization = story["budget"], story["stabilization"]
    for seen in story["signals"]:
        now += 2.0
        signals = seen and replace(seen, at=now + seen.at)
        result = decide(now, TARGETS, pools, signals, budget, stabilization, memory)
        assert result == decide(now, TARGETS, pools, signals, budget, stabilization, memory), "the same again"
        memory = result.memory
        sizes = {role: v.desired for role, v in result.decisions.items()}
        assert within_budget(pools, sizes, budget)
        for p in pools:
            decision, bounded = result.decisions[p.role], max(p.min, min(p.max, p.desired))
            assert decision.message
            assert decision.reason in REASONS
            assert decision.desired <= p.max
            assert decision.desired >= min(p.min, p.desired)
            assert decision.desired >= p.min or (budget is not None and decision.limit), "only the budget overrules min"
            if not decision.sufficient:
                assert decision.desired == bounded or decision.limit, "nothing but bounds changes what is not known"
            if now - began < stabilization:
                least = min(bounded, p.desired)
                assert decision.desired >= least or decision.limit == "GpuBudget", (
                    "not down before a whole stabilization"
                )
            if p.unschedulable:
                assert decision.desired <= max(p.desired, p.min)
        pools = [replace(p, desired=sizes[p.role], ready=min(p.ready, sizes[p.role])) for p in pools]
