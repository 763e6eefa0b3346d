"""What both sizes have in common: a model's answer, and care while evidence is thin. Pure; imports `state` only."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise_operator.scaling.types import PoolState

SLACK = 1.15
"""A pool is made smaller only where the smaller one would carry this much more than there is: after a scale-down the
same load, give or take its noise, must not ask for the replica again."""


@dataclass(frozen=True)
class Need:
    """The size that a model asks for, and why."""

    size: int
    slack: int
    """The size for SLACK times the load: what a smaller pool must have."""
    load: float
    """In the pool's own unit: servers kept busy in prefill, streams in decode."""
    reason: str
    message: str
    curable: bool = True
    """False: the latency target is out of reach for any number of replicas."""


def carefully(size: int, pool: PoolState) -> int:
    """At most double what has shown how it performs: with thin evidence a large step would rest on a guess."""
    return min(size, max(pool.desired, 2 * max(1, pool.ready)))
