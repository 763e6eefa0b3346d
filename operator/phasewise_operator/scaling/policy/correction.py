"""What measured latency adds to the models' sizes: a replica or some more, kept for as long as the load is alike. Pure.

Without it a pool that feedback made larger would shrink to the model's size after each stabilization, miss its target
and grow again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from phasewise_operator.scaling.policy.memory import Correction, Memory, PoolMemory
from phasewise_operator.scaling.policy.sizing import SLACK, Need
from phasewise_operator.scaling.types import PoolState, SloTargets

STEP_SHARE = 0.25
"""Of the pool: enough to matter, small enough to be cheap. A breach that the models see is theirs to size."""
SETTLE_SECONDS = 30.0
"""What was measured before the last change of a pool says nothing of it: an SLO window must have passed."""
ALIKE = 0.7
"""Share of the load that the correction was learned at from which on it holds."""
KEEP_SECONDS = 1800.0
"""Models, prompts and nodes change: after half an hour a correction must show itself again."""


def retarget(memory: Memory, targets: SloTargets, now: float) -> Memory:
    """With other targets nothing holds that requests judged by the old ones have shown.

    What the models learned stays: what a prompt or a stream costs is the same whatever the target.
    """
    if memory.targets is None or memory.targets == targets:
        return replace(memory, targets=targets)
    pools = {role: replace(m, correction=None, settled_since=None) for role, m in memory.pools.items()}
    return replace(memory, targets=targets, targets_since=now, pools=pools)


def judged_anew(memory: Memory, now: float, slo_window: float) -> bool:
    """What was measured was judged by these targets: the routers' window has none in it that the old ones judged."""
    return memory.targets_since is None or _measured_since(memory.targets_since, now, slo_window)


def _measured_since(since: float, now: float, slo_window: float) -> bool:
    """All that was measured is of the time since then."""
    return now - since >= max(SETTLE_SECONDS, slo_window)


def settle(memory: PoolMemory | None, pool: PoolState, now: float) -> PoolMemory:
    """With since when the pool has been complete and unchanged. Pods that find no node are not waited for."""
    memory = memory or PoolMemory()
    complete = pool.ready > 0 and pool.ready >= pool.desired - pool.unschedulable
    unchanged = memory.desired is None or memory.desired == pool.desired
    memory = replace(memory, desired=pool.desired)
    if not (complete and unchanged):
        return replace(memory, settled_since=None)
    return memory if memory.settled_since is not None else replace(memory, settled_since=now)


def given(memory: PoolMemory, desired: int) -> PoolMemory:
    """With the size that is given."""
    since = memory.settled_since if memory.desired in {None, desired} else None
    return replace(memory, desired=desired, settled_since=since)


def settled(memory: PoolMemory, now: float, slo_window: float) -> bool:
    """Long enough to judge the pool by what was measured."""
    return memory.settled_since is not None and _measured_since(memory.settled_since, now, slo_window)


def learn(old: Correction | None, need: Need, pool: PoolState, now: float) -> Correction:
    """One step more than there is."""
    step = max(1, math.ceil(STEP_SHARE * pool.desired))
    load = max(need.load, old.load if old and now - old.at < KEEP_SECONDS and need.load >= ALIKE * old.load else 0.0)
    return Correction(extra=pool.desired + step - max(1, need.replicas), load=load, at=now)


def apply(correction: Correction | None, need: Need, now: float) -> tuple[int, int]:
    """Replicas and replicas with slack of a need, with the correction where it holds."""

    def extra(load: float) -> int:
        holds = correction and now - correction.at < KEEP_SECONDS and load > 0 and load >= ALIKE * correction.load
        return correction.extra if correction and holds else 0

    return need.replicas + extra(need.load), max(
        need.replicas + extra(need.load), need.with_slack + extra(need.load * SLACK)
    )
