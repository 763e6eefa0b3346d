"""The list of a service's children, the builders of those that belong to no single role, and the stamp. Pure.

A builder returns a bare manifest: apiVersion, kind, name, the labels that only this child has, and its body.
`stamp` adds what every child has. Called by reconcile/plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from phasewise_operator.api.pool import PoolScalerStatus
from phasewise_operator.kinds import DISRUPTION_BUDGET, POOL_SCALER, SERVICE_ACCOUNT, Manifest
from phasewise_operator.render.context import Context, digest, role_labels, selector
from phasewise_operator.render.network import network_policies
from phasewise_operator.render.router import router_children
from phasewise_runtime import contract


def constant_children(ctx: Context, guarded: Collection[str] = ()) -> list[Manifest]:
    """The bare children whose number does not depend on sizes: all but the engines' Deployments and the PoolScalers.

    `guarded`: roles of which no pod may be evicted."""
    budgets = [disruption_budget(ctx, role, role in guarded) for role in (*ctx.pools, contract.ROUTER)]
    return [engine_account(ctx), *network_policies(ctx), *router_children(ctx), *budgets]


def stamp(ctx: Context, children: Iterable[Manifest]) -> list[Manifest]:
    """Every child as it is applied: with namespace, shared labels, owner and the hash of the intent.

    The Deployment of an old revision is read back with the labels and hash of an earlier pass; they are replaced.
    """
    return [_stamped(ctx, child) for child in children]


def child_labels(ctx: Context) -> dict[str, str]:
    """Labels of every child. A key here is added to live children and restarts nothing: pods have their own labels."""
    return {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_NAME: "phasewise",
        contract.LABEL_INSTANCE: ctx.name,
        contract.LABEL_SERVICE: ctx.name,
    }


def engine_account(ctx: Context) -> Manifest:
    """An identity without any right: engines never talk to the API server."""
    return SERVICE_ACCOUNT.manifest(ctx.child_name("engine"), automountServiceAccountToken=False)


def disruption_budget(ctx: Context, role: str, guarded: bool = False) -> Manifest:
    """One pod of a role at a time; none of a guarded one. A pod that is not healthy never blocks a node's drain."""
    spec = {
        "maxUnavailable": int(not guarded),
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(ctx, role)},
    }
    return DISRUPTION_BUDGET.manifest(ctx.child_name(role), role_labels(role), spec=spec)


def pool_scaler(ctx: Context, role: str) -> Manifest:
    """The object that an autoscaler scales in scaling.mode External. It is applied without spec.replicas, so that the
    field belongs to the autoscaler."""
    spec = {"serviceRef": {"name": ctx.name}, "role": role}
    return POOL_SCALER.manifest(scaler_name(ctx, role), role_labels(role), spec=spec)


def scaler_name(ctx: Context, role: str) -> str:
    return ctx.child_name(role)


def scaler_status(ctx: Context, role: str, live: Manifest, pods: int) -> Manifest:
    """The status to apply; `pods`: number of pods of the pool."""
    labels = ",".join(f"{name}={value}" for name, value in selector(ctx, role).items())
    meta = live["metadata"]
    status = PoolScalerStatus(observed_generation=meta["generation"], replicas=pods, selector=labels)
    identity = POOL_SCALER.identity(meta["namespace"], meta["name"], meta["uid"])
    return {**identity, "status": status.to_json()}


def _stamped(ctx: Context, child: Manifest) -> Manifest:
    own = child["metadata"]
    annotations = {k: v for k, v in own.get("annotations", {}).items() if k != contract.ANNOTATION_INTENT}
    meta: Manifest = {
        **own,
        "namespace": ctx.namespace,
        "labels": {**own.get("labels", {}), **child_labels(ctx)},
        "ownerReferences": [ctx.owner()],
        "annotations": annotations,
    }
    intent = digest({**child, "metadata": meta})
    return {**child, "metadata": {**meta, "annotations": {**annotations, contract.ANNOTATION_INTENT: intent}}}
