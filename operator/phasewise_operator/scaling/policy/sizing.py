"""What the models of both pools have in common: their answer, and the largest step while evidence is thin. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise_operator.scaling.types import PoolState

SLACK = 1.15
"""A pool is made smaller only where the smaller one would carry this much more than there is: after a scale-down the
same load, give or take its noise, must not ask for the replica again."""


@dataclass(frozen=True)
class Need:
    """The replicas that a model asks for, and why."""

    replicas: int
    with_slack: int
    """Replicas for SLACK times the load: what a smaller pool must have."""
    load: float
    """In the pool's own unit: servers kept busy in prefill, streams in decode."""
    reason: str
    message: str
    curable: bool = True
    """False: the latency target is out of reach for any number of replicas."""


def cap_step(replicas: int, pool: PoolState) -> int:
    """At most double the ready replicas: with thin evidence a larger step would rest on a guess."""
    return min(replicas, max(pool.desired, 2 * max(1, pool.ready)))
