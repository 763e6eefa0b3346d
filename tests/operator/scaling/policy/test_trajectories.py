"""Whole trajectories of the policy against the simulator: how far, how soon, and without going to and fro."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from tests.operator.scaling.policy.simulator import Simulator
from tests.operator.scaling.policy.simulator_parts import Row, Shape

from phasewise_operator.scaling.policy.reasons import REASONS
from phasewise_operator.scaling.types import SloTargets

TARGETS = SloTargets(ttft=2.0, itl=0.04, attainment=0.95)
BOTH = {"prefill": (1, 40), "decode": (1, 40)}


def at(*steps: tuple[float, float]) -> Callable[[float], float]:
    """A rate that changes at given times."""
    return lambda now: next((rate for begin, rate in reversed(steps) if now >= begin), 0.0)


@dataclass
class Trajectory:
    name: str
    shape: Shape
    seconds: float
    final: dict[str, tuple[int, int]]
    """Sizes at the end."""
    most: dict[str, int] = field(default_factory=dict[str, int])
    """Never more than that."""
    turns: int = 3
    """Changes of direction, of both pools."""
    attainment: tuple[float, float, float] | None = None
    """From when, until when, at least how much."""
    breach: float | None = None
    """When the load breaks the service: some pool must grow within 5 s."""
    step: int = 1
    """Largest single step up, at least."""
    reasons: frozenset[str] = frozenset()
    """That are seen."""
    setup: dict[str, Any] = field(default_factory=dict[str, Any])


TRAJECTORIES = [
    Trajectory(
        "burst",
        Shape(rate=at((0, 1), (60, 24), (360, 1))),
        600,
        final={"prefill": (1, 3), "decode": (1, 1)},
        most={"prefill": 26, "decode": 9},
        turns=8,
        attainment=(240, 360, 0.95),
        breach=60,
        step=3,
        reasons=frozenset({"PrefillLoad", "Backlog", "DecodeLoad", "LoadFell"}),
    ),
    Trajectory(
        "ramp",
        Shape(rate=lambda now: 1 + min(now, 400) / 20),
        560,
        final={"prefill": (13, 17), "decode": (3, 5)},
        turns=3,
        attainment=(60, 560, 0.93),
    ),
    Trajectory(
        "sinusoid",
        Shape(rate=lambda now: 8 - 7 * math.cos(2 * math.pi * now / 900)),
        1800,
        final={"prefill": (1, 6), "decode": (1, 2)},
        most={"prefill": 14, "decode": 5},
        turns=14,
        attainment=(0, 1800, 0.9),
        setup={"stabilization": 120.0},
    ),
    Trajectory(
        "constant",
        Shape(rate=at((0, 5))),
        900,
        final={"prefill": (4, 6), "decode": (1, 2)},
        turns=3,
        attainment=(120, 900, 0.98),
        setup={"stabilization": 300.0},
    ),
    Trajectory(
        "prompts only",
        Shape(rate=at((0, 0.2), (20, 2)), prompt=2000, output=20),
        400,
        final={"prefill": (4, 7), "decode": (1, 1)},
        most={"decode": 1},
        attainment=(120, 400, 0.95),
        step=2,
    ),
    Trajectory(
        "generation only",
        Shape(rate=at((0, 0.2), (20, 2)), prompt=100, output=1000),
        400,
        final={"prefill": (1, 1), "decode": (3, 5)},
        most={"prefill": 1, "decode": 8},
        attainment=(220, 400, 0.95),
        reasons=frozenset({"DecodeLoad"}),
    ),
    Trajectory(
        "both",
        Shape(rate=at((0, 0.5), (40, 6)), prompt=1500, output=400),
        420,
        final={"prefill": (6, 10), "decode": (3, 6)},
        most={"prefill": 16, "decode": 12},
        turns=4,
        attainment=(240, 420, 0.95),
        breach=40,
        step=2,
    ),
    Trajectory(
        "traffic ends, minimum 0, and comes again",
        Shape(rate=at((0, 2), (100, 0), (300, 1))),
        420,
        final={"prefill": (1, 3), "decode": (1, 2)},
        turns=8,
        reasons=frozenset({"Idle", "Woken"}),
        setup={"bounds": {"prefill": (0, 10), "decode": (0, 10)}, "start": {"prefill": 1, "decode": 1}},
    ),
    Trajectory(
        "no traffic",
        Shape(rate=at((0, 0))),
        200,
        final={"prefill": (1, 1), "decode": (2, 2)},
        turns=0,
        reasons=frozenset({"Idle"}),
        setup={"bounds": {"prefill": (1, 4), "decode": (2, 4)}},
    ),
    Trajectory(
        "prompts too long",
        Shape(rate=at((0, 0.2)), prompt=6000, output=20, noise=0.02, regular=True),
        600,
        final={"prefill": (1, 1), "decode": (1, 1)},
        most={"prefill": 1, "decode": 1},
        reasons=frozenset({"PromptTooLong"}),
        setup={"stabilization": 120.0},
    ),
    Trajectory(
        "decode admission is the bottleneck",
        Shape(rate=at((0, 1), (40, 4)), prompt=150, output=300, capacity=6, itl_slope=0.0001),
        400,
        final={"prefill": (1, 1), "decode": (3, 5)},
        most={"prefill": 1, "decode": 7},
        turns=2,
        attainment=(120, 400, 0.95),
        breach=43,
        reasons=frozenset({"DecodeAdmission"}),
    ),
    Trajectory(
        "KV cache fills",
        Shape(rate=at((0, 1), (40, 5)), prompt=150, output=300, kv=0.05, itl_slope=0.0001),
        400,
        final={"prefill": (1, 1), "decode": (2, 3)},
        most={"prefill": 1, "decode": 4},
        turns=2,
        attainment=(120, 400, 0.95),
        reasons=frozenset({"KvCacheFull"}),
    ),
    Trajectory(
        "half of the pods cannot be read",
        Shape(
            rate=at((0, 5)), unreadable=lambda now, role: 0.5 if role == "prefill" and now > 20 else 0.0, startup=4.0
        ),
        120,
        final={"prefill": (2, 8), "decode": (1, 2)},
        reasons=frozenset({"Unreadable"}),
        setup={"start": {"prefill": 4, "decode": 1}, "stabilization": 10.0},
    ),
    Trajectory(
        "no node for the third prefill pod",
        Shape(rate=at((0, 0.5), (40, 6)), nodes=3),
        300,
        final={"prefill": (4, 12), "decode": (1, 3)},
        reasons=frozenset({"Backlog"}),
    ),
    Trajectory(
        "GPU budget of 8",
        Shape(rate=at((0, 1), (40, 12), (260, 1)), gpus=1),
        480,
        final={"prefill": (1, 3), "decode": (1, 1)},
        turns=8,
        setup={"budget": 8},
    ),
]


@pytest.mark.parametrize("case", TRAJECTORIES, ids=lambda c: c.name)
def test_trajectory(case: Trajectory) -> None:
    setup: dict[str, Any] = {"bounds": BOTH, **case.setup}
    simulator = Simulator(case.shape, TARGETS, **setup)
    rows = simulator.run(case.seconds)
    try:
        check(case, simulator, rows)
    except AssertionError as wrong:
        raise AssertionError(f"{case.name}: {wrong}\n{story(rows)}") from None


def check(case: Trajectory, simulator: Simulator, rows: Sequence[Row]) -> None:
    for role, (lo, hi) in case.final.items():
        assert lo <= rows[-1].desired[role] <= hi, f"{role} ends with {rows[-1].desired[role]}, not {lo} to {hi}"
    for role, most in case.most.items():
        highest = max(r.desired[role] for r in rows)
        assert highest <= most, f"{role} had {highest}, more than {most}"
    assert turns(rows) <= case.turns, f"{turns(rows)} changes of direction"
    if case.attainment:
        begin, end, least = case.attainment
        assert simulator.attainment(begin, end) >= least, (
            f"attainment {simulator.attainment(begin, end):.3f} from {begin} s"
        )
    if case.breach is not None:
        first = next(r.at for r, s in steps(rows) if r.at > case.breach and s > 0)
        assert first - case.breach <= 5, f"first step up {first - case.breach:.0f} s after the breach"
    assert max((s for _, s in steps(rows)), default=0) >= case.step - (not steps(rows))
    seen = {v.reason for r in rows for v in r.decisions.values()}
    assert seen <= set(REASONS), "each reason is documented"
    assert case.reasons <= seen, f"never seen: {case.reasons - seen}"
    budget = case.setup.get("budget")
    assert budget is None or max(r.gpus for r in rows) <= budget


def steps(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    return [
        (after, after.desired[role] - before.desired[role])
        for before, after in pairwise(rows)
        for role in after.desired
        if after.desired[role] != before.desired[role]
    ]


def turns(rows: Sequence[Row]) -> int:
    """Changes of direction, summed over the pools."""
    count = 0
    for role in rows[0].desired:
        moves = [b.desired[role] - a.desired[role] for a, b in pairwise(rows)]
        signs = [m > 0 for m in moves if m]
        count += sum(a != b for a, b in pairwise(signs))
    return count


def story(rows: Sequence[Row]) -> str:
    """Where sizes change, and a line now and then."""
    shown = [rows[0]]
    for row in rows[1:]:
        if row.desired != shown[-1].desired or row.at - shown[-1].at >= 40:
            shown.append(row)
    return "\n".join(str(r) for r in shown)


def test_where_half_of_a_pool_cannot_be_read_no_size_changes() -> None:
    simulator = Simulator(
        Shape(rate=at((0, 2), (30, 20)), unreadable=lambda now, role: 0.5 if role == "prefill" and now > 30 else 0.0),
        TARGETS,
        BOTH,
        start={"prefill": 2, "decode": 2},
    )
    rows = simulator.run(120)
    blind = [r for r in rows if r.at > 32]
    assert {tuple(r.desired.items()) for r in blind} == {tuple(blind[0].desired.items())}
    assert not any(v.sufficient for r in blind for v in r.decisions.values())


def test_no_request_is_lost_by_any_change_of_size() -> None:
    simulator = Simulator(Shape(rate=at((0, 1), (30, 12), (150, 0))), TARGETS, BOTH, stabilization=20.0)
    simulator.run(400)
    assert simulator.arrived > 1000
    assert simulator.judged == simulator.arrived
