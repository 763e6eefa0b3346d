"""Objects as the API server has them after a plan was applied, and the conditions reported of them."""

from __future__ import annotations

import copy
from typing import Any

from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Failure, Observed, PodView
from phasewise_operator.reconcile import report as report_module
from phasewise_operator.reconcile.conditions import ConditionUpdate
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.reconcile.role_views import role_views
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.signals.kv_evidence import NO_EVIDENCE, KvEvidence
from phasewise_runtime import contract


def fields_of(value: Any) -> Any:
    """FieldsV1 of an applied value; a list counts as owned whole."""
    return {f"f:{k}": fields_of(v) for k, v in value.items()} if isinstance(value, dict) else {}


NOW = "2026-01-02T03:04:05Z"


def stored(intent: Manifest, **status: Any) -> Manifest:
    """An applied child as it is read back."""
    live = copy.deepcopy(intent)
    body = {k: v for k, v in intent.items() if k not in ("apiVersion", "kind", "metadata")}
    meta = {k: v for k, v in intent["metadata"].items() if k not in ("name", "namespace")}
    entry = {"manager": contract.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields_of({**body, "metadata": meta})}
    live["metadata"].update(
        managedFields=[entry],
        generation=1,
        creationTimestamp="2026-01-01T00:00:00Z",
        uid=f"uid-{intent['metadata']['name']}",
    )
    live["status"] = {"observedGeneration": 1, **status}
    return live


def observed(plan: Plan, ready: int = 0, pods: list[PodView] | None = None) -> Observed:
    """All desired children as they are after a plan was carried out, each Deployment with `ready` pods."""
    children: dict[tuple[str, str], Manifest] = {}
    views: list[PodView] = list(pods or [])
    for intent in plan.desired:
        count = min(ready, intent.get("spec", {}).get("replicas", 0))
        live = (
            stored(intent, readyReplicas=count, updatedReplicas=count)
            if intent["kind"] == "Deployment"
            else stored(intent)
        )
        children[intent["kind"], intent["metadata"]["name"]] = live
        if intent["kind"] == "Deployment":
            labels = intent["metadata"]["labels"]
            role, revision = labels[contract.LABEL_ROLE], labels.get(contract.LABEL_REVISION, "")
            views += [PodView(f"{role}-{i}", role, revision, ready=True, deleting=False) for i in range(count)]
    return Observed(children, tuple(views))


def desired(deployment: Manifest) -> str | None:
    return deployment["metadata"]["annotations"].get(contract.ANNOTATION_DESIRED)


def report(
    ctx: Context,
    plan: Plan,
    now: Observed,
    failures: list[Failure],
    evidence: KvEvidence = NO_EVIDENCE,
    before: Manifest | None = None,
) -> list[ConditionUpdate]:
    """Without `before` as in a pass after the first of the spec."""
    views = role_views(ctx, plan, now, NOW)
    known = {"observedGeneration": ctx.generation} if before is None else before
    return report_module.report(ctx, plan, now, views, failures, evidence, known)


def by_type(updates: list[ConditionUpdate]) -> dict[str, tuple[str, str]]:
    return {v.type: (v.status.value, v.reason) for v in updates}
