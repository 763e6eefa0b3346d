"""Requests are split by capacity, whether they come one at a time or pile up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise_runtime.router.split import Share, next_share

MARGIN = 4
"""Requests by which a share may be missed at any time."""

capacities = st.lists(st.integers(1, 64).map(float), min_size=1, max_size=5)


@settings(deadline=None)
@given(capacities, st.integers(0, 10**6), st.integers(1, 500))
def test_requests_one_at_a_time_are_split_by_capacity(given_: list[float], first: int, requests: int) -> None:
    counts = [0] * len(given_)
    for count in range(first, first + requests):
        counts[next_share([Share(c) for c in given_], count)] += 1
    for n, capacity in zip(counts, given_, strict=True):
        assert abs(n - requests * capacity / sum(given_)) < MARGIN


@settings(deadline=None)
@given(capacities, st.integers(0, 10**6), st.integers(1, 300))
def test_requests_that_pile_up_are_split_by_capacity(given_: list[float], first: int, requests: int) -> None:
    shares = [Share(c) for c in given_]
    for count in range(first, first + requests):
        shares = placed(shares, next_share(shares, count))
    for share in shares:
        assert abs(share.load - requests * share.capacity / sum(given_)) < MARGIN


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 500)), min_size=1, max_size=6), st.integers(0, 10**6))
def test_what_holds_a_quarter_more_than_its_share_gets_no_more(state: list[tuple[int, int]], count: int) -> None:
    shares = [Share(float(capacity), load) for capacity, load in state]
    chosen = shares[next_share(shares, count)]
    in_flight = 1 + sum(s.load for s in shares)
    assert chosen.load < 1.25 * in_flight * chosen.capacity / sum(s.capacity for s in shares) + 1e-6


def test_of_two_equal_groups_one_that_hangs_holds_five_eighths_at_most() -> None:
    hangs, serves = Share(1.0), Share(1.0, load=30)
    for count in range(1000):
        if next_share([hangs, serves], count) == 0:
            hangs = replace(hangs, load=hangs.load + 1)
    assert hangs.load == 52, "5/8 of 83"


def test_new_pods_get_their_part_of_what_comes_and_not_all_of_it() -> None:
    """Ten old pods have 300 requests in flight, the new one has none."""
    shares = [Share(10.0, load=300), Share(1.0)]
    for count in range(33):
        shares = placed(shares, next_share(shares, count))
    assert 1 <= shares[1].load <= 3 + MARGIN


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8])
def test_the_smallest_is_not_forgotten(step: int) -> None:
    """Also where each request takes several numbers, as one that is tried again does."""
    shares = [Share(100.0), Share(1.0)]
    chosen = [next_share(shares, count * step) for count in range(1000)]
    assert 4 <= chosen.count(1) <= 18


def placed(shares: Sequence[Share], index: int) -> list[Share]:
    return [replace(s, load=s.load + (i == index)) for i, s in enumerate(shares)]
