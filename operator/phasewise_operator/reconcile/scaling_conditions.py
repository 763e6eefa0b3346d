"""Who sizes the pools of a service, and what keeps them from the size they should have. Pure; a part of report.py."""

from __future__ import annotations

from phasewise_operator.api.pool import Replicas
from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.reconcile.conditions import (
    SCALING_ACTIVE,
    SCALING_LIMITED,
    ConditionUpdate,
    Reason,
    Severity,
)
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.policy.data_quality import NO_ROUTER, NO_SIGNAL
from phasewise_operator.scaling.types import NO_NODE, SizeDecision

_TRUE, _FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def scaling_conditions(ctx: Context, plan: Plan) -> list[ConditionUpdate]:
    """Who sizes the pools and whether it can; the message has each pool's reason."""
    limited = next((size for size in plan.sizes.values() if size.limit), None)
    unknown = _first_unknown(plan)
    provisional = unknown is not None and unknown.reason == NO_SIGNAL
    if limited:
        severity = Severity.NORMAL if limited.limit == NO_NODE else Severity.WARNING
        text = _size_messages(plan)
        bound = ConditionUpdate(SCALING_LIMITED, _TRUE, limited.limit, text, severity, provisional)
    else:
        text = "no bound is in the way"
        bound = ConditionUpdate(SCALING_LIMITED, _FALSE, Reason.WITHIN_BOUNDS, text, provisional=provisional)
    return [_scaling_active(ctx, plan, provisional), bound]


def _scaling_active(ctx: Context, plan: Plan, provisional: bool) -> ConditionUpdate:
    mode = ctx.spec.scaling.mode
    unknown = _first_unknown(plan)
    fixed = {role: text for role, pool in ctx.pools.items() if (text := _why_fixed(role, pool.replicas))}
    if mode is ScalingMode.MANUAL:
        return ConditionUpdate(SCALING_ACTIVE, _FALSE, Reason.MANUAL, "scaling.mode is Manual: replicas.min")
    if mode is ScalingMode.AUTO and not ctx.spec.paused and fixed.keys() == ctx.pools.keys():
        text = "; ".join(fixed.values())
        return ConditionUpdate(SCALING_ACTIVE, _FALSE, Reason.NO_MAXIMUM, text, Severity.NORMAL, provisional)
    if unknown:
        severity = Severity.NORMAL if unknown.reason == NO_ROUTER else Severity.WARNING
        text = f"the pools are held: {_size_messages(plan)}"
        return ConditionUpdate(SCALING_ACTIVE, _FALSE, unknown.reason, text, severity, provisional)
    if mode is ScalingMode.EXTERNAL:
        return ConditionUpdate(SCALING_ACTIVE, _TRUE, Reason.EXTERNAL, _size_messages(plan))
    return ConditionUpdate(SCALING_ACTIVE, _TRUE, Reason.MEASURED, "; ".join([_size_messages(plan), *fixed.values()]))


def _first_unknown(plan: Plan) -> SizeDecision | None:
    return next((size for size in plan.sizes.values() if not size.sufficient), None)


def _size_messages(plan: Plan) -> str:
    return "; ".join(f"{role}: {size.message}" for role, size in plan.sizes.items())


def _why_fixed(role: str, replicas: Replicas) -> str:
    """Why scaling.mode Auto cannot change a pool's size, and what to write; empty: it can."""
    if replicas.max is None:
        cause, remedy = f"{role}.replicas.max is not set", "set max"
    elif replicas.max <= replicas.min:
        cause, remedy = f"{role}.replicas.max is {replicas.max}", "raise max"
    else:
        return ""
    return f"{cause}, so {role} keeps replicas.min {replicas.min}: {remedy} to let it scale, or scaling.mode Manual"
