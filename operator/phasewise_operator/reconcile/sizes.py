"""How many replicas each pool is to have, and why: decided by the scaling loop, an autoscaler or the spec. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.kinds import POOL_SCALER
from phasewise_operator.live_values import mapping, number
from phasewise_operator.observed import Observed
from phasewise_operator.render.children import scaler_name
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.external import follow
from phasewise_operator.scaling.policy.budget import AllowedSize, DesiredSize, allowed_sizes
from phasewise_operator.scaling.policy.data_quality import NO_SIGNAL
from phasewise_operator.scaling.pools import desired_now, pools_of
from phasewise_operator.scaling.types import NO_RECOMMENDATION, PoolState, Recommendation, SizeDecision


def pool_sizes(ctx: Context, observed: Observed, recommendation: Recommendation) -> Mapping[str, SizeDecision]:
    """Decision by role. What runs keeps its size: a default would reset a pool when the operator starts."""
    if ctx.spec.paused:
        return {role: _unchanged(ctx, observed, role, "Paused", "spec.paused is true: as it is") for role in ctx.pools}
    return unpaused_sizes(ctx, observed, recommendation)


def unpaused_sizes(
    ctx: Context, observed: Observed, recommendation: Recommendation = NO_RECOMMENDATION
) -> Mapping[str, SizeDecision]:
    """The sizes that a paused service would have if it were not; without a recommendation those that its spec asks for
    whatever is measured."""
    mode, budget = ctx.spec.scaling.mode, ctx.spec.scaling.gpu_budget
    pools = pools_of(ctx, observed)
    if mode is ScalingMode.MANUAL:
        text = "scaling.mode is Manual: replicas.min"
        return _bounded(pools, {p.role: SizeDecision(p.min, "Manual", text) for p in pools}, budget)
    if mode is ScalingMode.EXTERNAL:
        return follow(pools, {role: _scaler_replicas(ctx, observed, role) for role in ctx.pools}, budget)
    decisions = (recommendation if recommendation.generation == ctx.generation else NO_RECOMMENDATION).decisions
    sizes = {p.role: decisions.get(p.role) or _unmeasured(ctx, observed, p.role) for p in pools}
    # That a target is missed was measured, so it holds for another generation too; sizes depend on the spec.
    missed = {role for role, decision in recommendation.decisions.items() if decision.missed}
    return _bounded(pools, sizes, budget, missed)


def _scaler_replicas(ctx: Context, observed: Observed, role: str) -> int | None:
    """spec.replicas of the pool's PoolScaler; None while there is none."""
    live = observed.child(POOL_SCALER, scaler_name(ctx, role))
    replicas = number(mapping(live.get("spec")).get("replicas"), default=-1) if live else -1
    return replicas if replicas >= 0 else None


def _unchanged(ctx: Context, observed: Observed, role: str, reason: str, message: str) -> SizeDecision:
    now, least = desired_now(observed, role), ctx.pools[role].replicas.min
    if now is not None:
        return SizeDecision(now, reason, message, sufficient=False)
    return SizeDecision(least, reason, message, sufficient=False, bound=f"nothing runs: {role}.replicas.min is {least}")


def _unmeasured(ctx: Context, observed: Observed, role: str) -> SizeDecision:
    return _unchanged(ctx, observed, role, NO_SIGNAL, "nothing has been measured yet")


def _bounded(
    pools: Sequence[PoolState], decisions: Mapping[str, SizeDecision], budget: int | None, missed: Collection[str] = ()
) -> Mapping[str, SizeDecision]:
    """Sizes within the bounds and the budget as they are now: both may have changed since the loop decided.

    A size that is held is the one that runs now, not the one that ran when the loop looked.
    """
    sizes = {p.role: decisions[p.role].desired if decisions[p.role].sufficient else p.desired for p in pools}
    allowed = allowed_sizes([DesiredSize(p, sizes[p.role], p.role in missed) for p in pools], budget)
    return {role: _within(decision, sizes[role], allowed[role]) for role, decision in decisions.items()}


def _within(decision: SizeDecision, size: int, allowed: AllowedSize) -> SizeDecision:
    limit = allowed.kind or decision.limit
    if (allowed.size, limit) == (size, decision.limit):
        return replace(decision, desired=size)
    why = f"{allowed.size} because {allowed.limit}"
    bound = decision.bound if allowed.size == size else why
    return replace(decision, desired=allowed.size, limit=limit, message=f"{decision.message}; {why}", bound=bound)
