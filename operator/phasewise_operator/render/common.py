"""Children that are the same for every role: the engines' identity and the disruption budgets. Pure."""

from __future__ import annotations

from phasewise_operator.kinds import DISRUPTION_BUDGET, SERVICE_ACCOUNT, Manifest
from phasewise_operator.render.context import Context, selector
from phasewise_operator.render.stamp import stamp
from phasewise_runtime import contract


def engine_account(ctx: Context) -> Manifest:
    """An identity without any right: engines never talk to the API server."""
    body = {"automountServiceAccountToken": False}
    return stamp(ctx, SERVICE_ACCOUNT, ctx.child_name("engine"), contract.DECODE, body)


def disruption_budget(ctx: Context, role: str) -> Manifest:
    """One pod of a role at a time; one that is not healthy never blocks a node's drain."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(ctx, role)},
    }
    return stamp(ctx, DISRUPTION_BUDGET, ctx.child_name(role), role, {"spec": spec})
