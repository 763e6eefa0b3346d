"""The roles of a service as they stand: how many replicas are ready, and what keeps their pods from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise_operator.observed import Observed, PodView, Workload
from phasewise_operator.reconcile.conditions import Reason, Severity
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.reconcile.pod_problems import PodProblem, pod_problem
from phasewise_operator.render.context import Context
from phasewise_runtime import contract


@dataclass(frozen=True)
class RoleView:
    """One role as it stands: desired and ready counts, and the problem of its pods."""

    role: str
    desired: int
    needed: int
    """How many of these must be ready for the role to be called ready: a pool that grows serves, and is ready, with its
    replicas.min."""
    ready: int
    """Of all revisions: what serves."""
    current: int
    """Ready at the desired revision, with every pod of the newest template."""
    pending: int
    problem: PodProblem | None


def role_views(ctx: Context, plan: Plan, observed: Observed, now: str) -> dict[str, RoleView]:
    """By role, the router last. `now`: RFC 3339, UTC."""
    engines = {e.role: _engine_view(ctx, plan, observed, e.role, e.revision, now) for e in plan.engines}
    return {**engines, contract.ROUTER: _router_view(ctx, observed, now)}


def _engine_view(ctx: Context, plan: Plan, observed: Observed, role: str, revision: str, now: str) -> RoleView:
    pods = [p for p in observed.pods if p.role == role and not p.deleting]
    current_pods = [p for p in pods if p.revision == revision]
    workload = next((w for w in observed.workloads if w.role == role and w.revision == revision), None)
    desired = plan.sizes[role].desired
    needed = min(desired, max(1, ctx.pools[role].replicas.min))
    problem = pod_problem(current_pods, now) or _creation_problem(workload)
    return _role_view(role, desired, needed, pods, workload, problem)


def _router_view(ctx: Context, observed: Observed, now: str) -> RoleView:
    pods = [p for p in observed.pods if p.role == contract.ROUTER and not p.deleting]
    workload = next((w for w in observed.workloads if w.role == contract.ROUTER), None)
    problem = pod_problem(pods, now) or _creation_problem(workload)
    desired = ctx.spec.router.replicas
    return _role_view(contract.ROUTER, desired, desired, pods, workload, problem)


def _role_view(
    role: str,
    desired: int,
    needed: int,
    pods: Sequence[PodView],
    workload: Workload | None,
    problem: PodProblem | None,
) -> RoleView:
    ready = sum(p.ready for p in pods)
    return RoleView(role, desired, needed, ready, workload.current if workload else 0, len(pods) - ready, problem)


def _creation_problem(workload: Workload | None) -> PodProblem | None:
    if workload is None or not workload.replica_failure:
        return None
    advice = f"change spec.{workload.role}, or the quota or admission policy that refuses them"
    text = f"pods of {workload.name} cannot be created: {workload.replica_failure}; {advice}"
    return PodProblem(Reason.PODS_REFUSED, text, Severity.STALLED)
