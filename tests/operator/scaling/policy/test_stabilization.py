"""When a pool may become smaller."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_operator.scaling.policy.stabilization import GAP_SECONDS, PastNeed, highest, remember, without_gap


def after(steps: list[tuple[float, int]], stabilization: float) -> tuple[PastNeed, ...]:
    past: tuple[PastNeed, ...] = ()
    for now, size in steps:
        past = remember(past, size, now, stabilization)
    return past


@pytest.mark.parametrize(
    ("steps", "stabilization", "expected"),
    [
        ([(0, 4)], 60, 4),
        ([(0, 4), (2, 1)], 60, 4),
        ([(0, 4), (2, 1), (60, 1)], 60, 4),  # 4 held until the call at 2 s
        ([(0, 4), (2, 1), (63, 1)], 60, 1),
        ([(0, 4), (2, 1), (30, 3), (63, 1)], 60, 3),
        ([(0, 4), (2, 1), (30, 3), (31, 1), (92, 1)], 60, 1),
        ([(0, 4), (500, 1)], 60, 4),  # nobody looked in between: 4 may have been needed until then
        ([(0, 4), (2, 1)], 0, 1),
    ],
)
def test_the_highest_size_of_the_stabilization_time(
    steps: list[tuple[float, int]], stabilization: float, expected: int
) -> None:
    assert highest(after(steps, stabilization)) == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.sampled_from([0.0, 2.0, 7.0, 30.0]))
def test_it_remembers_what_a_full_list_would(sizes: list[int], stabilization: float) -> None:
    steps = [(2.0 * i, size) for i, size in enumerate(sizes)]
    now = steps[-1][0]
    ends = [at for at, _ in steps[1:]] + [float("inf")]
    lasting = [size for (_, size), end in zip(steps, ends, strict=True) if end > now - stabilization]
    past = after(steps, stabilization)
    assert highest(past) == max(lasting)
    assert len(past) <= 10


def test_needs_from_before_a_gap_are_forgotten() -> None:
    """In another mode, or paused: nobody watched whether fewer were enough."""
    past = after([(0, 1), (10, 1)], 300)
    assert without_gap(past, 10 + GAP_SECONDS) == past
    assert without_gap(past, 11 + GAP_SECONDS) == ()
