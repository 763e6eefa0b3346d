"""Arithmetic of cumulative histograms: increment, sum, quantile. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """Observations at or below each upper bound, as Prometheus counts them; the last bound is +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        return self.counts[-1]

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count > 0 else None

    def quantile(self, q: float) -> float | None:
        """Prometheus' rule for `histogram_quantile` on classic histograms: linear within the bucket that holds the
        rank, the first bucket begins at 0, and a rank in the +Inf bucket answers with the highest finite bound.
        https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile

        None where nothing was observed, or where there is no finite bound to answer with.
        """
        if self.count <= 0 or len(self.bounds) < 2:
            return None
        rank = q * self.count
        at = bisect_left(self.counts, rank)
        if at >= len(self.bounds) - 1:
            return self.bounds[-2]
        high = self.bounds[at]
        if at == 0 and high <= 0:
            return high
        low, below = (self.bounds[at - 1], self.counts[at - 1]) if at else (0.0, 0.0)
        inside = self.counts[at] - below
        return low + (high - low) * (rank - below) / inside if inside > 0 else high


def rise(before: Histogram | None, after: Histogram) -> Histogram:
    """What was observed between two readings of one series. A histogram is reset as a whole, so one bucket that fell
    means that all of `after` is new; so do other bounds, which are another program's."""
    if before is None or before.bounds != after.bounds:
        return after
    counts = tuple(map(float.__sub__, after.counts, before.counts))
    if min(counts) < 0:
        return after
    return Histogram(before.bounds, counts, after.sum - before.sum)


def total(parts: Iterable[tuple[Histogram, float]]) -> Histogram | None:
    """The weighted sum. Where bounds differ, as between two versions of a program, each histogram counts at a bound
    that it lacks what it has at its next lower one: nothing is lost, and nothing looks faster than it was."""
    kept = [(part, weight) for part, weight in parts if weight > 0]
    if not kept:
        return None
    bounds = kept[0][0].bounds
    if any(part.bounds != bounds for part, _ in kept):
        bounds = tuple(sorted({bound for part, _ in kept for bound in part.bounds}))
        kept = [(_spread(part, bounds), weight) for part, weight in kept]
    rows = (part.counts if weight == 1 else [weight * count for count in part.counts] for part, weight in kept)
    counts = tuple(map(sum, zip(*rows, strict=True)))
    return Histogram(bounds, counts, sum(part.sum * weight for part, weight in kept))


def _spread(part: Histogram, bounds: tuple[float, ...]) -> Histogram:
    below = (bisect_right(part.bounds, bound) for bound in bounds)
    return Histogram(bounds, tuple(part.counts[at - 1] if at else 0.0 for at in below), part.sum)
