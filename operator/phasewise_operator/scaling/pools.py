"""From what the cluster shows of a service to the pools that are to be sized. Pure."""

from __future__ import annotations

from phasewise_operator.api.spec import Replicas
from phasewise_operator.observed import Observed
from phasewise_operator.render.context import Context, gpus_per_replica
from phasewise_operator.scaling.state import Pool, Targets


def targets_of(ctx: Context) -> Targets:
    slo = ctx.spec.slo
    return Targets(slo.ttft.seconds, slo.itl.seconds, slo.attainment / 100)


def highest(replicas: Replicas) -> int:
    """A pool without a max is not scaled."""
    return replicas.min if replicas.max is None else replicas.max


def clamp(wanted: int, replicas: Replicas) -> int:
    return max(replicas.min, min(wanted, highest(replicas)))


def wanted_now(observed: Observed, role: str) -> int | None:
    """Size that the pool was last given; None: it has no Deployment yet.

    Read from the annotation: replicas are fewer while a rollout is under way, and may have been edited by hand.
    """
    workloads = [w for w in observed.workloads if w.role == role]
    told = [w.wanted for w in workloads if w.wanted is not None]
    if told:
        return told[-1]
    return max((w.replicas for w in workloads), default=None)


def pools_of(ctx: Context, observed: Observed) -> list[Pool]:
    """Every pool of the spec, decode last."""
    return [_pool(ctx, observed, role) for role in ctx.pools]


def _pool(ctx: Context, observed: Observed, role: str) -> Pool:
    spec = ctx.pools[role]
    pods = [p for p in observed.pods if p.role == role]
    staying = [p for p in pods if not p.deleting]
    now = wanted_now(observed, role)
    wanted = spec.replicas.min if now is None else now
    gpus = gpus_per_replica(spec)
    return Pool(
        role=role,
        min=spec.replicas.min,
        max=highest(spec.replicas),
        wanted=wanted,
        ready=sum(p.ready for p in staying),
        unschedulable=sum(bool(p.unschedulable) for p in staying),
        gpus=gpus,
        # Whatever is beyond the wanted size is on its way out, or of a revision that is.
        gpus_beside=max(0, len(pods) - wanted) * gpus,
    )
