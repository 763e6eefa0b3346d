"""How many replicas each pool is to have, and why, by who decides: the loop, an outside autoscaler, the spec. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.kinds import POOL_SCALER
from phasewise_operator.observed import Observed
from phasewise_operator.render.context import Context
from phasewise_operator.render.scaler import scaler_name
from phasewise_operator.scaling.outside import follow
from phasewise_operator.scaling.pools import clamp, pools_of, wanted_now
from phasewise_operator.scaling.state import Advice, Verdict


def pool_sizes(ctx: Context, observed: Observed, advice: Advice) -> Mapping[str, Verdict]:
    """Verdict by role; never a default where something runs: that would reset a pool when the operator starts."""
    mode = ctx.spec.scaling.mode
    if mode is ScalingMode.MANUAL:
        text = "scaling.mode is Manual: replicas.min"
        return {role: Verdict(pool.replicas.min, "Manual", text) for role, pool in ctx.pools.items()}
    if mode is ScalingMode.EXTERNAL:
        asked = {role: _asked(ctx, observed, role) for role in ctx.pools}
        return follow(pools_of(ctx, observed), asked, ctx.spec.scaling.gpu_budget)
    return {role: _auto(ctx, observed, advice, role) for role in ctx.pools}


def _asked(ctx: Context, observed: Observed, role: str) -> int | None:
    """What the PoolScaler says; None while there is none."""
    live = observed.child(POOL_SCALER, scaler_name(ctx, role))
    return live["spec"].get("replicas") if live else None


def _auto(ctx: Context, observed: Observed, advice: Advice, role: str) -> Verdict:
    bounds = ctx.pools[role].replicas
    now = wanted_now(observed, role)
    stays = clamp(bounds.min if now is None else now, bounds)
    if ctx.spec.paused:
        return Verdict(stays, "Paused", "spec.paused is true: as it is", known=False)
    verdict = advice.verdicts.get(role)
    if verdict is None:
        return Verdict(stays, "NoSignal", "nothing has been measured yet: as it is", known=False)
    size = clamp(verdict.wanted, bounds)
    if size == verdict.wanted:
        return verdict
    return Verdict(size, "Bounds", f"replicas.min or max was changed to {bounds.min} to {bounds.max or bounds.min}")
