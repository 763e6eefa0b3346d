"""From what was planned and observed to updates: conditions that have no times yet. Pure; status.py goes on from here.

| condition     | True                                    | False                           | absent or Unknown     |
|---------------|-----------------------------------------|---------------------------------|-----------------------|
| ModelReady    | an engine pod of this revision is ready | an engine said why it cannot    | Unknown: still loading|
| PrefillReady, | at least replicas.min pods are ready,   | fewer; the reason is the pods'  | Prefill: absent where |
| DecodeReady,  | and one where any is desired             |                                 | there is no such pool |
| RouterReady   | (of the router: all)                    |                                 |                       |
| KVTransfer-    | the last hand-over of every prefill pod | prefill gave no KV parameters,  | Unknown: no request   |
| Ready         | that had one led to a first token       | or the fingerprints differ      | yet; absent: no P/D   |
| Ready         | none of the above is False, all pools   | the first that is, its word     |                       |
| ScalingActive | sizes follow what is measured, or a     | Manual, or too little is known: |                       |
|               | PoolScaler                              | the pools are held              |                       |
| ScalingLimited| a pool would be larger or smaller but   | otherwise                       |                       |
|               | for a bound, the budget, the scheduler  |                                 |                       |
| Reconciling   | the newest spec is not everywhere yet   | it is, or nothing moves         |                       |
| Stalled       | nothing changes until somebody acts     | otherwise                       |                       |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.observed import Failure, Observed, Workload
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.reconcile.pod_problems import PodProblem, pod_problem
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation
from phasewise_runtime import contract

MEASURED = "Measured"
"""ScalingActive where sizes follow what is measured."""
TITLES = {contract.PREFILL: "PrefillReady", contract.DECODE: "DecodeReady", contract.ROUTER: "RouterReady"}


@dataclass(frozen=True)
class ConditionUpdate:
    """A condition before it has times."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True)
class RoleView:
    """One role as it stands: desired and ready counts, and what keeps it."""

    role: str
    desired: int
    needed: int
    """How many of these the role must have to be called ready: a pool that is growing serves, and is what was asked
    for, with its replicas.min."""
    ready: int
    """Of all revisions: what serves."""
    current: int
    """Ready at the desired revision, with every pod of the newest template."""
    pending: int
    problem: PodProblem | None


def report(
    ctx: Context,
    plan: Plan,
    observed: Observed,
    failures: Sequence[Failure],
    recommendation: Recommendation = NO_RECOMMENDATION,
) -> list[ConditionUpdate]:
    views = list(role_views(ctx, plan, observed).values())
    roles = [_role_condition(v) for v in views]
    model = _model_condition(ctx, views)
    stalled = _stalled(views, failures)
    settled = not plan.rollout.reason and all(v.current >= v.needed for v in views) and not failures
    kv = [_kv_condition(plan, observed, recommendation)] if ctx.disaggregated else []
    return [
        _ready([*roles, *kv], stalled),
        model,
        *roles,
        *kv,
        *scaling_conditions(ctx, plan),
        _reconciling(ctx, plan, settled, stalled, views),
        stalled,
    ]


def refused(reason: str, message: str) -> list[ConditionUpdate]:
    """Conditions of a spec that cannot be acted on: what runs is left as it is."""
    return [
        ConditionUpdate("Ready", ConditionStatus.FALSE, reason, message),
        ConditionUpdate("Reconciling", ConditionStatus.FALSE, reason, "waits for a spec that can be acted on"),
        ConditionUpdate("Stalled", ConditionStatus.TRUE, reason, message),
    ]


def role_views(ctx: Context, plan: Plan, observed: Observed) -> dict[str, RoleView]:
    """By role, the router last."""
    engines = {e.role: _engine_view(ctx, plan, observed, e.role, e.revision) for e in plan.engines}
    return {**engines, contract.ROUTER: _router_view(ctx, observed)}


def _engine_view(ctx: Context, plan: Plan, observed: Observed, role: str, revision: str) -> RoleView:
    pods = [p for p in observed.pods if p.role == role and not p.deleting]
    mine = [p for p in pods if p.revision == revision]
    workload = next((w for w in observed.workloads if w.role == role and w.revision == revision), None)
    desired = plan.rollout.current[role]
    needed = min(desired, max(1, ctx.pools[role].replicas.min))
    problem = pod_problem(mine) or _creation_problem(workload)
    ready = sum(p.ready for p in pods)
    return RoleView(role, desired, needed, ready, _current(workload), sum(not p.ready for p in pods), problem)


def _router_view(ctx: Context, observed: Observed) -> RoleView:
    pods = [p for p in observed.pods if p.role == contract.ROUTER and not p.deleting]
    workload = next((w for w in observed.workloads if w.role == contract.ROUTER), None)
    problem = pod_problem(pods) or _creation_problem(workload)
    ready = sum(p.ready for p in pods)
    desired, pending = ctx.spec.router.replicas, sum(not p.ready for p in pods)
    return RoleView(contract.ROUTER, desired, desired, ready, _current(workload), pending, problem)


def _current(workload: Workload | None) -> int:
    """Ready pods that are also of the newest template; 0 while the Deployment's status is of an older one."""
    return min(workload.ready, workload.updated) if workload and workload.observed else 0


def _creation_problem(workload: Workload | None) -> PodProblem | None:
    if workload is None or not workload.replica_failure:
        return None
    return PodProblem(
        "PodsRefused", f"pods of {workload.name} cannot be created: {workload.replica_failure}", stalls=True
    )


def _role_condition(view: RoleView) -> ConditionUpdate:
    title = TITLES[view.role]
    count = f"{view.ready} of {view.desired} replicas are ready"
    if view.desired == 0:
        return ConditionUpdate(title, ConditionStatus.FALSE, "ScaledToZero", "no replica is desired")
    if view.ready >= view.needed:
        return ConditionUpdate(title, ConditionStatus.TRUE, "ReplicasReady", count)
    if view.problem:
        return ConditionUpdate(title, ConditionStatus.FALSE, view.problem.reason, view.problem.message)
    return ConditionUpdate(title, ConditionStatus.FALSE, "ReplicasStarting", count)


def _model_condition(ctx: Context, views: Sequence[RoleView]) -> ConditionUpdate:
    engines = [v for v in views if v.role != contract.ROUTER]
    if any(v.current > 0 for v in engines):
        return ConditionUpdate("ModelReady", ConditionStatus.TRUE, "Loaded", f"{ctx.spec.model.uri} is loaded")
    problem = next((v.problem for v in engines if v.problem and v.problem.reason.startswith("Model")), None)
    if problem:
        return ConditionUpdate("ModelReady", ConditionStatus.FALSE, problem.reason, problem.message)
    return ConditionUpdate(
        "ModelReady", ConditionStatus.UNKNOWN, "Loading", f"no engine has loaded {ctx.spec.model.uri} yet"
    )


def _kv_condition(plan: Plan, observed: Observed, recommendation: Recommendation) -> ConditionUpdate:
    title = "KVTransferReady"
    if len({e.fingerprint for e in plan.engines}) > 1:
        text = (
            "prefill and decode cannot read each other's KV cache: make image, args and environment equal in both pools"
        )
        return ConditionUpdate(title, ConditionStatus.FALSE, "FingerprintsDiffer", text)
    names = {p.name for p in observed.pods if p.role == contract.PREFILL and not p.deleting}
    failed, good = sorted(recommendation.kv_transfer_failed & names), recommendation.kv_transfer_succeeded & names
    if failed:
        text = f"{failed[0]} answers without KV parameters, so that decode computes its prompts again: see its log"
        return ConditionUpdate(title, ConditionStatus.FALSE, "KVParametersMissing", text)
    if good:
        return ConditionUpdate(
            title, ConditionStatus.TRUE, "Transferred", "the last hand-over of every prefill pod worked"
        )
    return ConditionUpdate(title, ConditionStatus.UNKNOWN, "NoTraffic", "no request has gone through both pools yet")


def _stalled(views: Sequence[RoleView], failures: Sequence[Failure]) -> ConditionUpdate:
    refusal = next((f for f in failures if f.refused or f.reason == "NameConflict"), None)
    if refusal:
        text = f"{refusal.kind} {refusal.name}: {refusal.message}"
        return ConditionUpdate("Stalled", ConditionStatus.TRUE, refusal.reason, text)
    problem = next((v.problem for v in views if v.problem and v.problem.stalls), None)
    if problem:
        return ConditionUpdate("Stalled", ConditionStatus.TRUE, problem.reason, problem.message)
    return ConditionUpdate("Stalled", ConditionStatus.FALSE, "Progressing", "nothing waits for a person")


def _reconciling(
    ctx: Context, plan: Plan, settled: bool, stalled: ConditionUpdate, views: Sequence[RoleView]
) -> ConditionUpdate:
    if ctx.spec.paused:
        return ConditionUpdate(
            "Reconciling", ConditionStatus.FALSE, "Paused", "spec.paused is true: nothing is changed"
        )
    if settled:
        return ConditionUpdate(
            "Reconciling", ConditionStatus.FALSE, "Reconciled", "what runs is what the spec asks for"
        )
    if stalled.status is ConditionStatus.TRUE:
        return ConditionUpdate(
            "Reconciling", ConditionStatus.FALSE, stalled.reason, "stalled: see the condition Stalled"
        )
    waits = ", ".join(f"{v.role} {v.current} of {v.needed}" for v in views if v.current < v.needed)
    text = plan.rollout.reason or f"waiting for replicas of the newest spec: {waits}"
    problem = next((v.problem for v in views if v.problem), None)
    if problem:
        hint = "; free capacity, or set spec.scaling.gpuBudget so that the old revision goes first"
        text += f"; {problem.reason}: {problem.message}{hint if problem.reason == 'Unschedulable' else ''}"
    return ConditionUpdate(
        "Reconciling", ConditionStatus.TRUE, "RollingOut" if plan.rollout.reason else "Progressing", text
    )


def _ready(parts: Sequence[ConditionUpdate], stalled: ConditionUpdate) -> ConditionUpdate:
    """The sub-condition's own reason goes up, so that one look tells why."""
    missing = [p for p in parts if p.status is ConditionStatus.FALSE]
    if not missing:
        return ConditionUpdate("Ready", ConditionStatus.TRUE, "Serving", "all pools and the router are ready")
    if stalled.status is ConditionStatus.TRUE:
        return ConditionUpdate("Ready", ConditionStatus.FALSE, stalled.reason, stalled.message)
    first = missing[0]
    return ConditionUpdate("Ready", ConditionStatus.FALSE, first.reason, f"{first.type}: {first.message}")


def scaling_conditions(ctx: Context, plan: Plan) -> list[ConditionUpdate]:
    """Who sizes the pools and whether it can; the message has each pool's reason."""
    mode, sizes = ctx.spec.scaling.mode, plan.sizes
    told = "; ".join(f"{role}: {size.message}" for role, size in sizes.items())
    unknown = next((size for size in sizes.values() if not size.sufficient), None)
    limited = next((size for size in sizes.values() if size.limit), None)
    if mode is ScalingMode.MANUAL:
        active = ConditionUpdate(
            "ScalingActive", ConditionStatus.FALSE, "Manual", "scaling.mode is Manual: replicas.min"
        )
    elif unknown:
        active = ConditionUpdate("ScalingActive", ConditionStatus.FALSE, unknown.reason, f"the pools are held: {told}")
    else:
        reason = "External" if mode is ScalingMode.EXTERNAL else MEASURED
        active = ConditionUpdate("ScalingActive", ConditionStatus.TRUE, reason, told)
    if limited:
        return [active, ConditionUpdate("ScalingLimited", ConditionStatus.TRUE, limited.limit, told)]
    return [active, ConditionUpdate("ScalingLimited", ConditionStatus.FALSE, "WithinBounds", "no bound is in the way")]
