"""Builders of every child, one file a kind or a role: values in, manifests out. Pure; I/O is reconcile/apply's."""

from __future__ import annotations

from phasewise_operator.kinds import Manifest
from phasewise_operator.render.common import disruption_budget, engine_account
from phasewise_operator.render.context import Context
from phasewise_operator.render.router import router_children
from phasewise_runtime import contract


def constant_children(ctx: Context) -> list[Manifest]:
    """All children but the engines' Deployments, whose number follows from the rollout."""
    budgets = [disruption_budget(ctx, role) for role in (*ctx.pools, contract.ROUTER)]
    return [engine_account(ctx), *router_children(ctx), *budgets]
