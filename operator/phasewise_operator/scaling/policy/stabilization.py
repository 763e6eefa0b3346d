"""When a pool may become smaller: to the highest size that was asked for in the stabilization time. Pure.

Each call asks for a size, which holds until the next. A call that knows too little, and the first one ever, ask for
the size that is there: so nothing shrinks before a whole stabilization has been watched without a gap.
Imports `memory` only.
"""

from __future__ import annotations

from phasewise_operator.scaling.policy.memory import Asked

GAP_SECONDS = 60.0
"""Longer without a call, and nothing is known of the time between: others may have decided then."""


def without_gap(asked: tuple[Asked, ...], now: float) -> tuple[Asked, ...]:
    """What was asked for, or nothing where it is too long ago to reach to now."""
    return asked if asked and now - asked[-1].until <= GAP_SECONDS else ()


def remember(asked: tuple[Asked, ...], size: int, now: float, stabilization: float) -> tuple[Asked, ...]:
    """With one more size; only those are kept that can still be the highest of some time to come."""
    held = (*asked[:-1], Asked(now, asked[-1].size)) if asked else ()
    kept = [a for a in held if a.size > size and a.until > now - stabilization]
    return (*kept, Asked(now, size))


def highest(asked: tuple[Asked, ...]) -> int:
    """The highest size of the stabilization time."""
    return asked[0].size
