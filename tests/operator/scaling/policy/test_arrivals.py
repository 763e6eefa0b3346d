"""The rate of arrivals: chance is averaged, a change is taken at once."""

from __future__ import annotations

import random

import pytest

from phasewise_operator.scaling.policy.load import steady_arrivals


@pytest.mark.parametrize(
    ("average", "rate", "expected"),
    [
        (None, 3.0, 3.0),
        (5.0, 24.0, 24.0),
        (24.0, 1.0, 1.0),
        (5.0, 0.0, 0.0),
        (0.0, 0.1, 0.1 / 15),
        (5.0, 6.0, 5 + 1 / 15),
        (5.0, 4.0, 5 - 1 / 15),
    ],
)
def test_a_change_beyond_chance_is_taken_at_once(average: float | None, rate: float, expected: float) -> None:
    assert steady_arrivals(average, rate, 10.0, 2.0) == pytest.approx(expected)


def test_dice_hardly_move_it() -> None:
    dice = random.Random(5)
    average: float | None = None
    seen: list[float] = []
    for _ in range(500):
        count = sum(dice.random() < 0.05 for _ in range(1000))  # 50 in 10 s
        average = steady_arrivals(average, count / 10, 10.0, 2.0)
        seen.append(average)
    assert sum(seen) / len(seen) == pytest.approx(5.0, rel=0.1)
    assert sum(abs(a - 5) > 1 for a in seen) < 50


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2])
def test_windows_without_a_request_do_not_pull_a_slow_rate_down(rate: float) -> None:
    dice = random.Random(7)
    average: float | None = None
    seen: list[float] = []
    came: list[bool] = []
    for _ in range(20_000):
        came.append(dice.random() < 2 * rate)
        average = steady_arrivals(average, sum(came[-5:]) / 10, 10.0, 2.0)
        seen.append(average)
    assert sum(seen) / len(seen) == pytest.approx(rate, rel=0.15)
