"""scaling.mode External: what an external autoscaler desires, within the pool's bounds and the GPU budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasewise_operator.scaling.policy.budget import keep_within_budget
from phasewise_operator.scaling.types import AT_MAXIMUM, AT_MINIMUM, GPU_BUDGET, PoolState, SizeDecision


def follow(
    pools: Sequence[PoolState], desired: Mapping[str, int | None], budget: int | None
) -> dict[str, SizeDecision]:
    """Decision by role. `desired`: replicas of each PoolScaler; None: there is no PoolScaler yet.

    Where the budget does not hold all that is desired, a pool keeps what it has and fits.
    """
    bounded = {p.role: _within_bounds(p, desired.get(p.role)) for p in pools}
    if budget is None:
        return bounded
    staying = keep_within_budget(pools, [min(p.desired, bounded[p.role].desired) for p in pools], (), budget)
    # A replica that goes frees its GPUs when its pod has ended, not before.
    free = budget - sum(p.desired * p.gpus + p.gpus_beside for p in pools)
    allowed: dict[str, SizeDecision] = {}
    for pool, size in zip(pools, staying, strict=True):
        decision = bounded[pool.role]
        more = decision.desired - size
        fits = more if pool.gpus == 0 else max(0, min(more, free // pool.gpus))
        free -= fits * pool.gpus
        allowed[pool.role] = decision if fits == more else _limited_by_budget(decision, size + fits, budget)
    return allowed


def _within_bounds(pool: PoolState, desired: int | None) -> SizeDecision:
    scaler = f"the PoolScaler of {pool.role}"
    if desired is None:
        size = max(pool.min, min(pool.desired, pool.max))
        return SizeDecision(size, "External", f"{scaler} is being made: as it is")
    if desired > pool.max:
        text = f"{scaler} asks for {desired}, {pool.role}.replicas.max is {pool.max}: raise it to allow more"
        return SizeDecision(pool.max, "External", text, AT_MAXIMUM)
    if desired < pool.min:
        text = f"{scaler} asks for {desired}, {pool.role}.replicas.min is {pool.min}: lower it to allow fewer"
        return SizeDecision(pool.min, "External", text, AT_MINIMUM)
    return SizeDecision(desired, "External", f"{scaler} asks for {desired}")


def _limited_by_budget(decision: SizeDecision, size: int, budget: int) -> SizeDecision:
    limit = f"scaling.gpuBudget {budget} allows {size} now: raise it, or shrink the other pool"
    return SizeDecision(size, "External", f"{decision.message}; {limit}", GPU_BUDGET)
