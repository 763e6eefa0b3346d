"""Arithmetic of cumulative histograms."""

from __future__ import annotations

import math

import pytest

from phasewise_operator.scaling.signals.histograms import Histogram, rise, total

INF = math.inf


@pytest.mark.parametrize(
    ("bounds", "counts", "q", "answer"),
    [
        ((1, 2, INF), (4, 8, 8), 0.5, 1.0),
        ((1, 2, INF), (4, 8, 8), 0.75, 1.5),
        ((1, 2, INF), (4, 8, 8), 0.25, 0.5),
        ((1, 2, INF), (4, 8, 8), 1.0, 2.0),
        ((1, 2, INF), (0, 8, 8), 0.5, 1.5),
        ((1, 2, 3, INF), (4, 4, 8, 8), 0.5, 1.0),
        ((1, 2, INF), (1, 2, 10), 0.95, 2.0),
        ((1, 2, INF), (0, 0, 3), 0.5, 2.0),
        ((-1, 2, INF), (8, 8, 8), 0.5, -1.0),
        ((1, 2, INF), (0, 0, 0), 0.5, None),
        ((INF,), (5,), 0.5, None),
        ((1, 2, INF), (0, 4, 4), 0.0, 1.0),
    ],
)
def test_a_quantile_is_prometheus_histogram_quantile(
    bounds: tuple[float, ...], counts: tuple[float, ...], q: float, answer: float | None
) -> None:
    assert Histogram(bounds, counts, 0).quantile(q) == answer


@pytest.mark.parametrize(
    ("before", "after", "risen"),
    [
        (None, Histogram((1, INF), (2, 3), 4), Histogram((1, INF), (2, 3), 4)),
        (Histogram((1, INF), (1.0, 1.0), 1), Histogram((1, INF), (2.0, 3.0), 4), Histogram((1, INF), (1, 2), 3)),
        (Histogram((1, INF), (3.0, 3.0), 1), Histogram((1, INF), (2.0, 4.0), 4), Histogram((1, INF), (2, 4), 4)),
        (Histogram((2, INF), (1.0, 1.0), 1), Histogram((1, INF), (2.0, 3.0), 4), Histogram((1, INF), (2, 3), 4)),
    ],
    ids=["first", "risen", "one bucket fell", "other bounds"],
)
def test_a_histogram_of_the_time_between_two_scrapes(
    before: Histogram | None, after: Histogram, risen: Histogram
) -> None:
    assert rise(before, after) == risen


def test_histograms_of_two_versions_add_up_and_nothing_looks_faster() -> None:
    old, new = Histogram((1, 4, INF), (2, 6, 7), 10), Histogram((2, 4, INF), (1, 1, 3), 5)
    assert total([(old, 1), (new, 2), (old, 0)]) == Histogram((1, 2, 4, INF), (2, 4, 8, 13), 20)
    assert total([]) is None
