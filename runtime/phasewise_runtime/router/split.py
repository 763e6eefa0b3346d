"""Splits requests by capacity. Pure.

Of the requests that come, each group gets its share. One that is slower than its capacity says would so hold ever more
of those in flight: it gets none while it holds a quarter more than its share. New pods get their share of what comes as
well, not all of it until they hold as many requests as the old; only a group that adds more than a quarter to the
capacity gets all that comes for a moment, until it holds its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GOLDEN: Final = 0.6180339887498949
"""Multiples of the golden ratio, modulo 1, fill the unit interval more evenly than those of any other number: however
many there are, each part of it has had its share of them, to within a few."""

SLACK: Final = 1.25
"""Times its share of the requests in flight that a group may hold."""


@dataclass(frozen=True, slots=True)
class Share:
    """What can take requests: pods of one kind."""

    capacity: float
    """Above 0."""
    load: int = 0
    """Requests in flight."""


def next_share(shares: Sequence[Share], count: int) -> int:
    """Index of the one that takes the next request; `count` is incremented from request to request.

    It takes turns; where the one whose turn it is holds too much, the one that lacks most of its share.
    """
    load, capacity = 1 + sum(s.load for s in shares), sum(s.capacity for s in shares)
    fair = [load * s.capacity / capacity for s in shares]
    chosen = _turn(shares, count * GOLDEN % 1.0 * capacity)
    if shares[chosen].load < SLACK * fair[chosen]:
        return chosen
    return max(range(len(shares)), key=lambda i: fair[i] - shares[i].load)


def _turn(shares: Sequence[Share], point: float) -> int:
    """Index of the one at `point` of all capacities in a row."""
    for i, share in enumerate(shares):
        point -= share.capacity
        if point < 0:
            return i
    return len(shares) - 1
