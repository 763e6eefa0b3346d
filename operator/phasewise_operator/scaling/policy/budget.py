"""What is allowed of the desired sizes: bounds, scheduler and GPU budget. Pure.

In this order, each overruling those above it:
1. `min` and `max` of the pool.
2. No more than is desired now while a pod of the pool finds no node: asking for more would only queue more pods.
   Those that wait stay desired, so that a cluster autoscaler sees them. `min` is allowed all the same.
3. The budget. What runs beyond it goes one by one, from the pool whose target is not being missed, then from the one
   that holds the most GPUs beyond its `min`; never below a `min`. Otherwise nothing that runs is taken away for the
   other pool. A replica that goes frees its GPUs when its pod has ended, not before: release comes before add. What is
   left goes one by one to the pool that is short by the larger share of its desired size; ties to the one whose target
   is being missed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from phasewise_operator.scaling.policy.format import counted
from phasewise_operator.scaling.types import AT_MAXIMUM, GPU_BUDGET, NO_NODE, PoolState


@dataclass(frozen=True)
class DesiredSize:
    """The size that a pool should have if there were no limits."""

    pool: PoolState
    size: int
    missed: bool = False
    """A target is being missed that this pool could help."""


@dataclass(frozen=True)
class AllowedSize:
    """The size that a pool gets within the limits."""

    size: int
    limit: str | None = None
    """Why it is not the desired size, and what to change."""
    kind: str = ""
    """The limit in one word, as in types.SizeDecision."""


def allowed_sizes(desired: Sequence[DesiredSize], budget: int | None) -> dict[str, AllowedSize]:
    """What each pool gets, by role."""
    bounded = [_bounded(p) for p in desired]
    sizes = _afforded(desired, [b.size for b in bounded], budget)
    return {
        p.pool.role: b
        if size == b.size
        else AllowedSize(size, f"the GPU budget of {budget} is used up: raise scaling.gpuBudget", GPU_BUDGET)
        for p, b, size in zip(desired, bounded, sizes, strict=True)
    }


def _bounded(desired: DesiredSize) -> AllowedSize:
    pool = desired.pool
    size, limit, kind = max(pool.min, min(pool.max, desired.size)), None, ""
    if desired.size > pool.max:
        limit, kind = f"{pool.role}.replicas.max is {pool.max}: raise it", AT_MAXIMUM
    elif desired.size < pool.min:
        limit = f"{pool.role}.replicas.min is {pool.min}"
    most = max(pool.desired, pool.min)
    if pool.unschedulable and size > most:
        pods = counted(pool.unschedulable, f"{pool.role} pod")
        size, limit, kind = most, f"the scheduler finds no node for {pods}: add nodes or free accelerators", NO_NODE
    return AllowedSize(size, limit, kind)


def _afforded(desired: Sequence[DesiredSize], bounded: Sequence[int], budget: int | None) -> list[int]:
    if budget is None:
        return list(bounded)
    pools = [p.pool for p in desired]
    missed = {p.pool.role for p in desired if p.missed}
    sizes = keep_within_budget(
        pools, [min(pool.desired, size) for pool, size in zip(pools, bounded, strict=True)], missed, budget
    )
    free = budget - sum(pool.desired * pool.gpus + pool.gpus_beside for pool in pools)

    def shortfall(i: int) -> tuple[float, bool, int]:
        return (bounded[i] - sizes[i]) / bounded[i], desired[i].missed, -i

    while takers := [i for i, pool in enumerate(pools) if sizes[i] < bounded[i] and pool.gpus <= max(0, free)]:
        neediest = max(takers, key=shortfall)
        sizes[neediest] += 1
        free -= pools[neediest].gpus
    return sizes


def keep_within_budget(
    pools: Sequence[PoolState], sizes: Sequence[int], missed: Collection[str], budget: int
) -> list[int]:
    """As much of what runs as the budget holds. GPUs of terminating pods are not counted: they come free anyway."""
    kept = list(sizes)

    def over() -> int:
        return sum(n * pool.gpus for n, pool in zip(kept, pools, strict=True)) - budget

    def readiness(i: int) -> tuple[bool, int, int]:
        return pools[i].role not in missed, (kept[i] - pools[i].min) * pools[i].gpus, -pools[i].gpus

    while over() > 0 and (givers := [i for i, pool in enumerate(pools) if pool.gpus and kept[i] > pool.min]):
        kept[max(givers, key=readiness)] -= 1
    # The last replica that went may have freed more than was missing.
    for i, pool in enumerate(pools):
        if pool.gpus:
            kept[i] += min(sizes[i] - kept[i], max(0, -over()) // pool.gpus)
    return kept
