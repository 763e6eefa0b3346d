"""The simulator's part in rollouts that fail: when they do, and what must hold in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phasewise_operator.rollout import Rollout, plan_rollout
from phasewise_operator.rollout.failure import combined
from phasewise_operator.rollout.turn_back import fallback, plan_fallback

if TYPE_CHECKING:
    from tests.operator.rollout_simulator import Cluster


def next_rollout(cluster: Cluster) -> Rollout:
    """The next step. The version fails where it is marked so, its pods are late, or the test condemns it."""
    desired, running = cluster.desired(), cluster.running()
    back = fallback(desired, running)
    new = {(d.role, d.revision) for d in desired} - {(r.role, r.revision) for r in back}
    found = [cluster.deployments[key] for key in new if key in cluster.deployments]
    marked = len(found) == len(new) and all(d.failed == combined(desired) for d in found)
    late = any(cluster.deadline is not None and d.unready >= cluster.deadline for d in found)
    if back and (marked or late or cluster.condemned):
        keep = not cluster.roll_back
        return plan_fallback(desired, back, running, cluster.budget, cluster.allow_downtime, keep_failed=keep)
    return plan_rollout(desired, running, cluster.budget, cluster.allow_downtime)


def check_fallback(cluster: Cluster, rollout: Rollout) -> None:
    """In the end the old revision is at its size; with `roll_back` it is all that there is."""
    seen = f"{cluster.running()} {rollout}"
    drained = any(r.leaving for r in cluster.running() if cluster.size.get(r.role) == 1)
    assert drained or not rollout.blocked, f"(f) there was room for the old: {seen}"
    back = {role: d for (role, revision), d in cluster.deployments.items() if rollout.fallback.get(role) == revision}
    asked = sum(cluster.size.get(role, d.replicas) * d.gpus for role, d in back.items())
    if cluster.budget is not None and asked > cluster.budget:
        return  # it has larger replicas than those that the sizes are for, or a pool more: it has as many as fit
    for role, size in cluster.size.items():
        old, new = (role, rollout.fallback.get(role, "")), (role, cluster.version.revisions[role])
        if old not in cluster.deployments or not cluster.deployments[old].good:
            continue
        ready, beside = cluster.deployments[old].ready, cluster.deployments[new] if old != new else None
        if cluster.roll_back:
            assert ready == size, f"(f) the old is not back: {seen}"
            assert beside is None or not beside.pods, f"(f) failed pods are left: {seen}"
        else:
            assert ready + (beside.ready if beside else 0) >= size, f"(f) it shrank: {seen}"
