"""What an outside autoscaler asks for is done within bounds and budget, and what is not done is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_operator.scaling.external import follow
from phasewise_operator.scaling.types import PoolState


def pool(role: str, desired: int, gpus: int = 1, beside: int = 0, low: int = 1, high: int = 8) -> PoolState:
    return PoolState(role, low, high, desired, ready=desired, gpus=gpus, gpus_beside=beside)


CASES = [
    ("as asked", {"prefill": 3, "decode": 5}, None, {"prefill": (3, ""), "decode": (5, "")}),
    ("bounds", {"prefill": 0, "decode": 99}, None, {"prefill": (1, "AtMinimum"), "decode": (8, "AtMaximum")}),
    ("not made yet", {"prefill": None, "decode": 2}, None, {"prefill": (2, ""), "decode": (2, "")}),
    ("budget holds", {"prefill": 3, "decode": 3}, 6, {"prefill": (3, ""), "decode": (3, "")}),
    ("budget is short", {"prefill": 4, "decode": 4}, 6, {"prefill": (4, ""), "decode": (2, "GpuBudget")}),
    (
        "budget lowered below what runs",
        {"prefill": 2, "decode": 2},
        3,
        {"prefill": (1, "GpuBudget"), "decode": (2, "")},
    ),
    ("budget lowered, more asked", {"prefill": 4, "decode": None}, 3, {"prefill": (1, "GpuBudget"), "decode": (2, "")}),
    ("one gives first", {"prefill": 1, "decode": 3}, 4, {"prefill": (1, ""), "decode": (2, "GpuBudget")}),
]


@pytest.mark.parametrize(("asked", "budget", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_size_of_the_pool_scaler_is_applied(
    asked: dict[str, int | None], budget: int | None, expected: dict[str, tuple[int, str]]
) -> None:
    decisions = follow([pool("prefill", 2), pool("decode", 2)], asked, budget)
    assert {role: (v.desired, v.limit) for role, v in decisions.items()} == expected
    assert all(v.reason == "External" for v in decisions.values())


def test_a_lowered_budget_says_what_to_change() -> None:
    decisions = follow([pool("prefill", 4), pool("decode", 4)], {"prefill": 4, "decode": 4}, 4)
    assert [(v.desired, v.limit) for v in decisions.values()] == [(2, "GpuBudget")] * 2
    assert all("scaling.gpuBudget 4 allows 2 now: raise it" in v.message for v in decisions.values())


def test_gpus_of_pods_that_are_going_are_not_free_yet() -> None:
    decisions = follow([pool("prefill", 1, beside=1), pool("decode", 2)], {"prefill": 1, "decode": 3}, 4)
    assert (decisions["decode"].desired, decisions["decode"].limit) == (2, "GpuBudget")


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 3), st.integers(0, 9)), min_size=2, max_size=2
    ),
    st.integers(1, 20),
)
def test_the_budget_is_never_passed_by_a_step(rows: list[tuple[int, int, int, int]], budget: int) -> None:
    roles = ("prefill", "decode")
    pools = [pool(r, desired, gpus, beside, low=0) for r, (desired, gpus, beside, _) in zip(roles, rows, strict=True)]
    asked: dict[str, int | None] = {r: row[3] for r, row in zip(roles, rows, strict=True)}
    decisions = follow(pools, asked, budget)
    held = sum(p.desired * p.gpus + p.gpus_beside for p in pools)
    after = sum(max(p.desired, decisions[p.role].desired) * p.gpus + p.gpus_beside for p in pools)
    assert after <= max(held, budget)
    assert sum(decisions[p.role].desired * p.gpus for p in pools) <= budget, "min is 0"
