"""Bounds, scheduler and GPU budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise_operator.scaling.policy.budget import DesiredSize, allowed_sizes
from phasewise_operator.scaling.types import PoolState

PREFILL = PoolState("prefill", min=1, max=8, desired=2, ready=2, gpus=1)
DECODE = PoolState("decode", min=1, max=8, desired=2, ready=2, gpus=2)


def sizes(prefill: int, decode: int, budget: int | None, *, missed: str = "", **changes: int) -> tuple[int, int]:
    pools = (replace(PREFILL, **changes), DECODE)
    allowed = allowed_sizes(
        [DesiredSize(p, n, p.role == missed) for p, n in zip(pools, (prefill, decode), strict=True)], budget
    )
    return allowed["prefill"].size, allowed["decode"].size


@pytest.mark.parametrize(
    ("case", "desired", "budget", "expected"),
    [
        ("no budget", (8, 8), None, (8, 8)),
        ("max", (99, 99), None, (8, 8)),
        ("min", (0, 0), None, (1, 1)),
        ("enough for both", (3, 3), 9, (3, 3)),
        ("nothing left: nobody drops", (8, 8), 6, (2, 2)),
        ("lowered below what runs: as much as it holds", (3, 3), 3, (1, 1)),
        ("lowered: the pool with most beyond its min gives first", (2, 2), 4, (2, 1)),
        ("lowered: what is not proposed goes anyway", (1, 2), 5, (1, 2)),
        ("lowered: no growth with what is left", (8, 2), 5, (2, 1)),
        ("lowered below the minima", (3, 3), 1, (1, 1)),
        ("what goes is not there yet for the other", (1, 3), 6, (1, 2)),
        ("short by the larger share first", (3, 8), 10, (2, 4)),
        ("what is too small for one is for the other", (4, 8), 7, (3, 2)),
    ],
)
def test_sizes_within_the_budget(
    case: str, desired: tuple[int, int], budget: int | None, expected: tuple[int, int]
) -> None:
    assert sizes(*desired, budget) == expected, case


def test_a_tie_goes_to_the_pool_whose_target_is_missed() -> None:
    pools = PREFILL, replace(DECODE, gpus=1)
    for missed in ("prefill", "decode"):
        allowed = allowed_sizes([DesiredSize(p, 4, p.role == missed) for p in pools], 5)
        assert allowed[missed].size == 3
    assert allowed["prefill"].limit is not None
    assert "raise scaling.gpuBudget" in allowed["prefill"].limit


LARGE = PoolState("prefill", min=1, max=8, desired=2, ready=2, gpus=4)
SMALL = PoolState("decode", min=1, max=8, desired=5, ready=5, gpus=1)


@pytest.mark.parametrize(
    ("case", "budget", "missed", "beside", "expected"),
    [
        ("it fits", 13, "", 0, (2, 5)),
        ("a small replica goes where that is enough", 12, "", 0, (2, 4)),
        ("a large one goes, and leaves room for small ones", 9, "", 0, (1, 5)),
        ("not from the pool that misses its target", 9, "prefill", 0, (2, 1)),
        ("what is left of a large one stays with the small", 8, "", 0, (1, 4)),
        ("pods that are going come free by themselves", 13, "", 9, (2, 5)),
    ],
)
def test_a_lowered_budget_takes_as_little_as_it_can(
    case: str, budget: int, missed: str, beside: int, expected: tuple[int, int]
) -> None:
    pools = replace(LARGE, gpus_beside=beside), SMALL
    allowed = allowed_sizes([DesiredSize(p, 8, p.role == missed) for p in pools], budget)
    assert tuple(g.size for g in allowed.values()) == expected, case
    again = [DesiredSize(replace(p, desired=allowed[p.role].size), 8, p.role == missed) for p in pools]
    assert {r: g.size for r, g in allowed_sizes(again, budget).items()} == {r: g.size for r, g in allowed.items()}, (
        "and settles"
    )


def test_a_lowered_budget_says_so_and_what_to_change() -> None:
    pools = replace(PREFILL, desired=4), replace(DECODE, gpus=1, desired=4)
    allowed = allowed_sizes([DesiredSize(p, 4) for p in pools], 4)
    assert [(g.size, g.kind) for g in allowed.values()] == [(2, "GpuBudget")] * 2
    assert all(
        "budget of 4" in (g.limit or "") and "raise scaling.gpuBudget" in (g.limit or "") for g in allowed.values()
    )


def test_pods_on_their_way_out_count() -> None:
    assert sizes(8, 2, 8, gpus_beside=2) == (2, 2)
    assert sizes(8, 2, 8, gpus_beside=0) == (4, 2)


@pytest.mark.parametrize(
    ("proposed", "changes", "expected", "words"),
    [
        (9, {}, 8, "prefill.replicas.max is 8: raise it"),
        (3, {"unschedulable": 1}, 2, "the scheduler finds no node for 1 prefill pod"),
        (1, {"unschedulable": 1}, 1, None),  # down goes on as usual
        (3, {"unschedulable": 1, "min": 3}, 3, None),
    ],
)
def test_a_limit_says_what_to_change(proposed: int, changes: dict[str, int], expected: int, words: str | None) -> None:
    allowed = allowed_sizes([DesiredSize(replace(PREFILL, **changes), proposed)], None)["prefill"]
    assert allowed.size == expected
    assert (words is None) == (allowed.limit is None)
    assert words is None or words in (allowed.limit or "")


def test_replicas_without_gpus_need_no_budget() -> None:
    assert allowed_sizes([DesiredSize(replace(PREFILL, gpus=0), 6)], 0)["prefill"].size == 6
