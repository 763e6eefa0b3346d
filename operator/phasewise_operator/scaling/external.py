"""scaling.mode External: what an outside autoscaler asks for, within the pool's bounds and the GPU budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasewise_operator.scaling.policy.budget import held
from phasewise_operator.scaling.types import AT_MAXIMUM, AT_MINIMUM, GPU_BUDGET, PoolState, SizeDecision


def follow(pools: Sequence[PoolState], asked: Mapping[str, int | None], budget: int | None) -> dict[str, SizeDecision]:
    """Decision by role. Where the budget does not hold all that is asked, a pool keeps what it has and fits."""
    wishes = {p.role: _wish(p, asked.get(p.role)) for p in pools}
    if budget is None:
        return wishes
    staying = held(pools, [min(p.desired, wishes[p.role].desired) for p in pools], (), budget)
    base = {p.role: size for p, size in zip(pools, staying, strict=True)}
    # A replica that goes frees its GPUs when its pod has ended, not before.
    free = budget - sum(p.desired * p.gpus + p.gpus_beside for p in pools)
    granted: dict[str, SizeDecision] = {}
    for pool in pools:
        wish = wishes[pool.role]
        more = wish.desired - base[pool.role]
        fits = more if pool.gpus == 0 else max(0, min(more, free // pool.gpus))
        free -= fits * pool.gpus
        granted[pool.role] = wish if fits == more else _short(wish, base[pool.role] + fits, budget)
    return granted


def _wish(pool: PoolState, asked: int | None) -> SizeDecision:
    scaler = f"the PoolScaler of {pool.role}"
    if asked is None:
        desired = max(pool.min, min(pool.desired, pool.max))
        return SizeDecision(desired, "External", f"{scaler} is being made: as it is")
    if asked > pool.max:
        text = f"{scaler} asks for {asked}, {pool.role}.replicas.max is {pool.max}: raise it to allow more"
        return SizeDecision(pool.max, "External", text, AT_MAXIMUM)
    if asked < pool.min:
        text = f"{scaler} asks for {asked}, {pool.role}.replicas.min is {pool.min}: lower it to allow fewer"
        return SizeDecision(pool.min, "External", text, AT_MINIMUM)
    return SizeDecision(asked, "External", f"{scaler} asks for {asked}")


def _short(wish: SizeDecision, desired: int, budget: int) -> SizeDecision:
    text = (
        f"{wish.message}; scaling.gpuBudget {budget} leaves room for {desired} now: raise it, or shrink the other pool"
    )
    return SizeDecision(desired, "External", text, GPU_BUDGET)
