"""From what was observed of a service to the pools that are to be sized, and the pods that are scraped. Pure."""

from __future__ import annotations

from typing import Final

from phasewise_operator.api.pool import Replicas
from phasewise_operator.live_values import count
from phasewise_operator.observed import Observed, PodView, Workload
from phasewise_operator.render.context import Context, gpus_per_replica
from phasewise_operator.revisions import gpus_held, running_revisions
from phasewise_operator.scaling.signals.history import ScrapeTarget
from phasewise_operator.scaling.types import PoolState, SloTargets
from phasewise_runtime import contract

DEFAULT_BATCH: Final = 256
"""vLLM's default of max-num-seqs on most accelerators."""


def targets_of(ctx: Context) -> SloTargets:
    slo = ctx.spec.slo
    return SloTargets(slo.ttft.seconds, slo.itl.seconds, slo.attainment / 100)


def highest(replicas: Replicas) -> int:
    """A pool without a max is not scaled."""
    return replicas.min if replicas.max is None else replicas.max


def desired_now(observed: Observed, role: str) -> int | None:
    """Size that the pool was last given; None: it has not had one yet.

    Read from the annotation: replicas are fewer while a rollout is under way, and may have been edited by hand. Without
    one, as when the Deployment was deleted by hand, from the service's status, or from the pods that are left.
    """
    current = _current(observed, role)
    if current is not None:
        return current.desired
    if role in observed.reported:
        return observed.reported[role]
    replicas = [w.replicas for w in observed.workloads if w.role == role]
    left = sum(p.role == role and not p.deleting for p in observed.pods)
    return max(replicas) if replicas else left or None


def _current(observed: Observed, role: str) -> Workload | None:
    """The newest Deployment that has the annotation with the size of the pool."""
    annotated = [w for w in observed.workloads if w.role == role and w.desired is not None]
    return annotated[-1] if annotated else None


def pools_of(ctx: Context, observed: Observed) -> list[PoolState]:
    """Every pool of the spec, decode last."""
    return [_pool(ctx, observed, role) for role in ctx.pools]


def _pool(ctx: Context, observed: Observed, role: str) -> PoolState:
    spec = ctx.pools[role]
    staying = [p for p in observed.pods if p.role == role and not p.deleting]
    current = desired_now(observed, role)
    desired = spec.replicas.min if current is None else current
    gpus = gpus_per_replica(spec)
    return PoolState(
        role=role,
        min=spec.replicas.min,
        max=highest(spec.replicas),
        desired=desired,
        ready=sum(p.ready for p in staying),
        unschedulable=sum(bool(p.unschedulable) for p in staying),
        gpus=gpus,
        batch=_batch(ctx),
        gpus_beside=_gpus_beside(observed, role, desired),
    )


def _batch(ctx: Context) -> int:
    configured = count(str(ctx.spec.engine.args.get("max-num-seqs", "")))
    return DEFAULT_BATCH if configured is None else configured


def _gpus_beside(observed: Observed, role: str, desired: int) -> int:
    """GPUs of pods of the current revision beyond the desired size, which are going, and of every other revision."""
    current = _current(observed, role)
    revisions = [r for r in running_revisions(observed) if r.role == role]
    if current is None:
        return gpus_held(revisions)
    beyond = sum(max(0, r.pods - desired) * r.gpus for r in revisions if r.revision == current.revision)
    return beyond + gpus_held(r for r in revisions if r.revision != current.revision)


def at_rest(pool: PoolState, auto: bool) -> bool:
    """All its replicas are ready, and it is as small as it may be."""
    return pool.ready >= pool.desired and (not auto or pool.desired == pool.min)


def scrape_targets(observed: Observed) -> tuple[list[ScrapeTarget], list[ScrapeTarget]]:
    """Pods that should answer: ready ones that stay. And terminating routers: they still have requests in flight."""
    staying = [p for p in observed.pods if p.address and p.ready and not p.deleting]
    draining = [p for p in observed.pods if p.address and p.deleting and p.role == contract.ROUTER]
    expected = [p for p in staying if p.role in (*contract.ENGINE_ROLES, contract.ROUTER)]
    return [_target(p) for p in expected], [_target(p) for p in draining]


def _target(pod: PodView) -> ScrapeTarget:
    return ScrapeTarget(pod.role, pod.name, pod.uid, pod.address)
