"""Bounds, scheduler and GPU budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise_operator.scaling.policy.budget import Proposal, grant
from phasewise_operator.scaling.state import Pool

PREFILL = Pool("prefill", min=1, max=8, wanted=2, ready=2, gpus=1)
DECODE = Pool("decode", min=1, max=8, wanted=2, ready=2, gpus=2)


def sizes(prefill: int, decode: int, budget: int | None, *, missed: str = "", **changes: int) -> tuple[int, int]:
    pools = (replace(PREFILL, **changes), DECODE)
    grants = grant([Proposal(p, n, p.role == missed) for p, n in zip(pools, (prefill, decode), strict=True)], budget)
    return grants["prefill"].size, grants["decode"].size


@pytest.mark.parametrize(
    ("case", "wanted", "budget", "expected"),
    [
        ("no budget", (8, 8), None, (8, 8)),
        ("max", (99, 99), None, (8, 8)),
        ("min", (0, 0), None, (1, 1)),
        ("enough for both", (3, 3), 9, (3, 3)),
        ("nothing left: nobody drops", (8, 8), 6, (2, 2)),
        ("over it already: nothing is forced", (3, 3), 3, (2, 2)),
        ("over it already: down as proposed", (1, 2), 3, (1, 2)),
        ("what goes is not there yet for the other", (1, 3), 6, (1, 2)),
        ("short by the larger share first", (3, 8), 10, (2, 4)),
        ("what is too small for one is for the other", (4, 8), 7, (3, 2)),
    ],
)
def test_what_the_budget_leaves(
    case: str, wanted: tuple[int, int], budget: int | None, expected: tuple[int, int]
) -> None:
    assert sizes(*wanted, budget) == expected, case


def test_a_tie_goes_to_the_pool_whose_target_is_missed() -> None:
    pools = PREFILL, replace(DECODE, gpus=1)
    for missed in ("prefill", "decode"):
        grants = grant([Proposal(p, 4, p.role == missed) for p in pools], 5)
        assert grants[missed].size == 3
    assert grants["prefill"].limit is not None
    assert "raise scaling.gpuBudget" in grants["prefill"].limit


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
    granted = grant([Proposal(replace(PREFILL, **changes), proposed)], None)["prefill"]
    assert granted.size == expected
    assert (words is None) == (granted.limit is None)
    assert words is None or words in (granted.limit or "")


def test_replicas_without_gpus_need_no_budget() -> None:
    assert grant([Proposal(replace(PREFILL, gpus=0), 6)], 0)["prefill"].size == 6
