"""Splits requests by capacity. Pure.

Over time each group gets its share of the requests, and at no moment does a group hold more than its share of those in
flight. So one that is slower than its capacity says gets fewer requests, not a growing queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GOLDEN: Final = 0.6180339887498949
"""Multiples of the golden ratio, modulo 1, fill the unit interval more evenly than those of any other number: however
many there are, each part of it has had its share of them, to within a few."""


@dataclass(frozen=True, slots=True)
class Share:
    """What can take requests: pods of one kind."""

    capacity: float
    """Above 0."""
    load: int = 0
    """Requests in flight."""


def next_share(shares: Sequence[Share], count: int) -> int:
    """Index of the one that takes the next request; `count` is incremented from request to request.

    Only those take part that hold less than their share of the requests in flight, the new one included; there is
    always one.
    """
    capacity, load = sum(s.capacity for s in shares), 1 + sum(s.load for s in shares)
    below = [i for i, s in enumerate(shares) if s.load * capacity < s.capacity * load]
    point = count * GOLDEN % 1.0 * sum(shares[i].capacity for i in below)
    for i in below:
        point -= shares[i].capacity
        if point < 0:
            return i
    return below[-1]
