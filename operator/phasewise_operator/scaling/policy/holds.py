"""What holds back a scale-down: one ordered table of rules. Pure.

A pool that needs fewer replicas keeps its size while any rule of HOLDS returns a text. The first that does is the
message of the reason Stabilizing, where no other reason goes before it. A new rule is a function here with its place in
HOLDS. What it has to know about a pool is a field of types.PoolState, which pools.py fills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from phasewise_operator.scaling.policy.format import seconds
from phasewise_operator.scaling.policy.memory import PoolMemory
from phasewise_operator.scaling.policy.stabilization import highest
from phasewise_operator.scaling.types import PoolState


@dataclass(frozen=True)
class HoldContext:
    """What a rule may ask about, besides the pool itself."""

    memory: PoolMemory
    """With the replicas that are needed now."""
    stabilization: float
    """Seconds."""
    complete: bool
    """Every pod of the service that should answer could be scraped."""


Hold: TypeAlias = Callable[[PoolState, HoldContext, float], str | None]
"""(pool, context, now) -> why no replica may be taken away now, to be read after "2 replicas would do; "; or None.

`now` is the loop's monotonic clock. A rule about the age of an object gets that age in a field of PoolState."""


def some_pod_cannot_be_scraped(_pool: PoolState, context: HoldContext, _now: float) -> str | None:
    return None if context.complete else "no replica is taken away while a pod of the service cannot be scraped"


def stabilization_is_not_over(pool: PoolState, context: HoldContext, _now: float) -> str | None:
    if highest(context.memory.past_needs) < pool.desired:
        return None
    return f"taken away when that has held for {seconds(context.stabilization)}"


HOLDS: Final[tuple[Hold, ...]] = (some_pod_cannot_be_scraped, stabilization_is_not_over)


def hold_on(pool: PoolState, context: HoldContext, now: float) -> str | None:
    """The text of the first rule that holds back a scale-down; None: none does."""
    return next((text for hold in HOLDS if (text := hold(pool, context, now))), None)
