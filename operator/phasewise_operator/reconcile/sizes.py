"""How many replicas each pool is to have, and why, by who decides: the loop, an outside autoscaler, the spec. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.kinds import POOL_SCALER
from phasewise_operator.observed import Observed
from phasewise_operator.render.context import Context
from phasewise_operator.render.scaler import scaler_name
from phasewise_operator.scaling.outside import follow
from phasewise_operator.scaling.policy.budget import Grant, Proposal, grant
from phasewise_operator.scaling.policy.trust import NO_SIGNAL
from phasewise_operator.scaling.pools import pools_of, wanted_now
from phasewise_operator.scaling.state import NO_ADVICE, Advice, Pool, Verdict


def pool_sizes(ctx: Context, observed: Observed, advice: Advice) -> Mapping[str, Verdict]:
    """Verdict by role; never a default where something runs: that would reset a pool when the operator starts."""
    mode, budget = ctx.spec.scaling.mode, ctx.spec.scaling.gpu_budget
    if ctx.spec.paused:
        return {role: _stays(ctx, observed, role, "Paused", "spec.paused is true: as it is") for role in ctx.pools}
    pools = pools_of(ctx, observed)
    if mode is ScalingMode.MANUAL:
        text = "scaling.mode is Manual: replicas.min"
        return _bounded(pools, {p.role: Verdict(p.min, "Manual", text) for p in pools}, budget)
    if mode is ScalingMode.EXTERNAL:
        return follow(pools, {role: _asked(ctx, observed, role) for role in ctx.pools}, budget)
    verdicts = (advice if advice.generation == ctx.generation else NO_ADVICE).verdicts
    sizes = {p.role: verdicts.get(p.role) or _unmeasured(ctx, observed, p.role) for p in pools}
    # What was measured holds for an older generation too: only sizes were decided by its spec.
    return _bounded(pools, sizes, budget, {role for role, verdict in advice.verdicts.items() if verdict.missed})


def _asked(ctx: Context, observed: Observed, role: str) -> int | None:
    """What the PoolScaler says; None while there is none."""
    live = observed.child(POOL_SCALER, scaler_name(ctx, role))
    return live["spec"].get("replicas") if live else None


def _stays(ctx: Context, observed: Observed, role: str, reason: str, message: str) -> Verdict:
    now, least = wanted_now(observed, role), ctx.pools[role].replicas.min
    if now is not None:
        return Verdict(now, reason, message, known=False)
    return Verdict(least, reason, message, known=False, bound=f"nothing runs: {role}.replicas.min is {least}")


def _unmeasured(ctx: Context, observed: Observed, role: str) -> Verdict:
    return _stays(ctx, observed, role, NO_SIGNAL, "nothing has been measured yet")


def _bounded(
    pools: Sequence[Pool], verdicts: Mapping[str, Verdict], budget: int | None, missed: Collection[str] = ()
) -> Mapping[str, Verdict]:
    """Sizes within the bounds and the budget as they are now: both may have changed since the loop decided.

    A size that is held is the one that runs now, not the one that ran when the loop looked.
    """
    sizes = {p.role: verdicts[p.role].wanted if verdicts[p.role].known else p.wanted for p in pools}
    grants = grant([Proposal(p, sizes[p.role], p.role in missed) for p in pools], budget)
    return {role: _within(verdict, sizes[role], grants[role]) for role, verdict in verdicts.items()}


def _within(verdict: Verdict, size: int, granted: Grant) -> Verdict:
    limit = granted.kind or verdict.limit
    if (granted.size, limit) == (size, verdict.limit):
        return replace(verdict, wanted=size)
    why = f"{granted.size} because {granted.limit}"
    bound = verdict.bound if granted.size == size else why
    return replace(verdict, wanted=granted.size, limit=limit, message=f"{verdict.message}; {why}", bound=bound)
