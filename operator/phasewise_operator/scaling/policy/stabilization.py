"""When a pool may become smaller: to the most replicas that were needed in the stabilization time. Pure.

Each call needs so many replicas, which holds until the next call. A call that knows too little, and the first one ever,
needs what runs: so nothing shrinks before a full stabilization has been watched without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

GAP_SECONDS = 60.0
"""Longer without a call, and nothing is known of the time between: others may have decided then."""


@dataclass(frozen=True)
class PastNeed:
    """Replicas that were needed, for the last time at `until`."""

    until: float
    replicas: int


def without_gap(past: tuple[PastNeed, ...], now: float) -> tuple[PastNeed, ...]:
    """The past needs, or none where they are too old to reach to now."""
    return past if past and now - past[-1].until <= GAP_SECONDS else ()


def remember(past: tuple[PastNeed, ...], replicas: int, now: float, stabilization: float) -> tuple[PastNeed, ...]:
    """With one more need; only those are kept that can still be the highest of some time to come."""
    lasting = (*past[:-1], PastNeed(now, past[-1].replicas)) if past else ()
    kept = [p for p in lasting if p.replicas > replicas and p.until > now - stabilization]
    return (*kept, PastNeed(now, replicas))


def highest(past: tuple[PastNeed, ...]) -> int:
    """The most replicas that were needed in the stabilization time."""
    return past[0].replicas
