"""Which pods of a pool that shrinks are to go: those with the fewest requests. Pure.

The ReplicaSet controller takes pods that are not ready first, whatever their annotation, and then the cheapest
(https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost). Any of them drains without
loss; a pod with fewer requests ends sooner, and gives its GPU back sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from phasewise_operator.kinds import POD, Manifest
from phasewise_operator.observed import Observed, PodView
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.scaling.types import Recommendation
from phasewise_runtime import contract

CHEAP = "-1"


def deletion_costs(namespace: str, plan: Plan, observed: Observed, recommendation: Recommendation) -> list[Manifest]:
    """Pods with the annotations to apply before Deployments are made smaller; empty where none is made smaller."""
    manifests: list[Manifest] = []
    for engine in plan.engines:
        mine = [p for p in observed.pods if p.role == engine.role and p.revision == engine.revision and not p.deleting]
        live = next((w for w in observed.workloads if w.role == engine.role and w.revision == engine.revision), None)
        fewer = live.replicas - plan.rollout.current[engine.role] if live else 0
        if fewer > 0:
            chosen = {p.name for p in cheapest_pods(mine, fewer, recommendation)}
            manifests += [_cost(namespace, p, CHEAP if p.name in chosen else "") for p in mine if _differs(p, chosen)]
    return manifests


def cheapest_pods(pods: Sequence[PodView], count: int, recommendation: Recommendation) -> list[PodView]:
    """The pods that are to go: those on nodes that are drained, then those with the fewest requests; of equals the
    youngest, whose cache is the coldest."""
    by_age = sorted(pods, key=lambda p: (p.created, p.name), reverse=True)
    return sorted(by_age, key=lambda p: (p.ready, not p.cordoned, _requests(p, recommendation)))[:count]


def _requests(pod: PodView, recommendation: Recommendation) -> float:
    """Requests in flight on a pod; a pod of which nothing is known is taken last."""
    pool = recommendation.signals.pools.get(pod.role) if recommendation.signals else None
    load = pool.pods.get(pod.name) if pool else None
    if load is None:
        return math.inf
    engine = None if load.running is None or load.waiting is None else load.running + load.waiting
    return max((n for n in (engine, load.concurrency) if n is not None), default=math.inf)


def _differs(pod: PodView, chosen: set[str]) -> bool:
    return pod.deletion_cost != (CHEAP if pod.name in chosen else "")


def _cost(namespace: str, pod: PodView, cost: str) -> Manifest:
    """With the uid, an apply to a pod that is gone is refused and creates none. Without a cost, ours is removed."""
    manifest = POD.identity(namespace, pod.name, pod.uid)
    if cost:
        manifest["metadata"]["annotations"] = {contract.ANNOTATION_DELETION_COST: cost}
    return manifest
