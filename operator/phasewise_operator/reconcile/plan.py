"""From the spec and what is observed to the whole desired state: what to write, what to remove. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from phasewise_operator.api.spec import OnFailure, ScalingMode
from phasewise_operator.kinds import DEPLOYMENT, POOL_SCALER, SERVICE_ACCOUNT, Manifest
from phasewise_operator.live_values import mapping
from phasewise_operator.observed import Observed, is_orphan
from phasewise_operator.reconcile.failed_rollouts import failed_rollout
from phasewise_operator.reconcile.kept_engines import engine_notes, kept_engines, what_is_behind, with_kept_image
from phasewise_operator.reconcile.managed_fields import extract, owned_fields, owns
from phasewise_operator.reconcile.sizes import pool_sizes
from phasewise_operator.render.children import constant_children, pool_scaler, scaler_name, stamp
from phasewise_operator.render.context import Context, RenderError, gpus_per_replica
from phasewise_operator.render.engine import EngineTemplate, engine_deployment, engine_templates
from phasewise_operator.revisions import RunningRevision, running_revisions
from phasewise_operator.rollout import DesiredRevision, Rollout, plan_rollout
from phasewise_operator.rollout.failure import RolloutFailure
from phasewise_operator.rollout.turn_back import fallback, plan_fallback
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation, SizeDecision
from phasewise_runtime import contract


@dataclass(frozen=True)
class Changes:
    """What is to be written so that the children are as they should be. False where nothing is."""

    create: tuple[Manifest, ...] = ()
    """PoolScalers to make, with spec.replicas. Later they are applied without it: it is the autoscaler's."""
    write: tuple[Manifest, ...] = ()
    """Desired children that are missing or have drifted."""
    remove: tuple[Manifest, ...] = ()
    """Live children that are not desired."""

    def __bool__(self) -> bool:
        return bool(self.create or self.write or self.remove)


@dataclass(frozen=True)
class Plan:
    desired: tuple[Manifest, ...]
    engines: tuple[EngineTemplate, ...]
    rollout: Rollout
    sizes: Mapping[str, SizeDecision] = field(default_factory=dict[str, SizeDecision])
    """Size of each pool over all its revisions, and why, by role."""
    changes: Changes = Changes()
    behind: tuple[str, ...] = ()
    """Where engines are not as they would be rendered now; empty: nowhere."""
    failed: RolloutFailure | None = None
    """Why the rollout of the desired revision failed, where an old one goes on in its place."""

    @property
    def revision(self) -> str:
        """Of all pools together."""
        return "-".join(e.revision for e in self.engines)


def make_plan(
    ctx: Context,
    observed: Observed,
    recommendation: Recommendation = NO_RECOMMENDATION,
    proved: frozenset[str] | None = None,
    now: str = "",
) -> Plan:
    """`proved`: names of engine pods that have handed KV over; None: the routers say nothing of it. `now`: RFC 3339,
    UTC; without it a rollout has failed only where it is marked so. Raises RenderError where the spec cannot be
    rendered."""
    notes = engine_notes(observed)
    default_image, ctx = ctx.images.engine, with_kept_image(ctx, notes)
    rendered = engine_templates(ctx)
    engines = kept_engines(ctx, notes, rendered)
    sizes = pool_sizes(ctx, observed, recommendation)
    revisions = _desired_revisions(ctx, engines, sizes)
    # A pool without a counterpart, or beside one at zero, has nobody to hand KV to.
    proved = proved if ctx.disaggregated and all(d.replicas for d in revisions) else None
    running = running_revisions(observed, proved)
    failed = failed_rollout(ctx, observed, notes, revisions, running, recommendation, now)
    rollout = _rollout(ctx, revisions, running, failed)
    create, scalers = _pool_scalers(ctx, observed, sizes)
    current = _current_deployments(ctx, observed, engines, sizes, rollout, failed)
    old = _old_deployments(observed, rollout, sizes)
    constant = _constant_children(ctx, observed, sizes, failed is not None)
    children = (*constant, *scalers, *current, *old)
    desired = tuple(stamp(ctx, children))
    names = {_ref(m) for m in desired}
    remove = tuple(m for m in observed.children.values() if _ref(m) not in names and _prunable(m))
    changes = Changes(create, _to_write(desired, observed), remove)
    behind = what_is_behind(ctx, default_image, notes, rendered)
    return Plan(desired, engines, rollout, sizes, changes, behind, failed)


def repair_changes(ctx: Context, observed: Observed) -> Changes:
    """For a spec whose engines cannot be rendered: they stay as they are, and the children that do not depend on them,
    such as the router, are kept as they should be."""
    try:
        children = stamp(ctx, _constant_children(ctx, observed, pool_sizes(ctx, observed, NO_RECOMMENDATION)))
    except RenderError:
        return Changes()
    return Changes(write=_to_write(children, observed))


def _to_write(desired: Iterable[Manifest], observed: Observed) -> tuple[Manifest, ...]:
    return tuple(m for m in desired if needs_write(m, observed))


def needs_write(intent: Manifest, observed: Observed) -> bool:
    """Missing, an orphan, not what was applied last, or no longer ours in every field."""
    live = observed.children.get(_ref(intent))
    if live is None or is_orphan(live):
        return True
    annotations = mapping(live["metadata"].get("annotations"))
    applied, desired = annotations.get(contract.ANNOTATION_INTENT), intent["metadata"]["annotations"]
    return applied != desired[contract.ANNOTATION_INTENT] or not owns(owned_fields(live), intent)


def _constant_children(
    ctx: Context, observed: Observed, sizes: Mapping[str, SizeDecision], failed: bool = False
) -> list[Manifest]:
    account = _renewed_account(ctx, observed)
    return constant_children(dataclasses.replace(ctx, router_account=account), _guarded(ctx, observed, sizes, failed))


def _guarded(ctx: Context, observed: Observed, sizes: Mapping[str, SizeDecision], failed: bool) -> set[str]:
    """Pools of one: on a node that is drained their pod goes when its successor is ready (rollout/drain.py). While a
    rollout has pods of two revisions, both count, and one may be evicted. One that failed or is blocked may stay for
    days: pods that failed are no reason to evict the one that serves."""
    if not observed.drains_known or ctx.spec.rollout.allow_downtime:
        return set()
    live = Counter(workload.role for workload in observed.workloads if workload.replicas)
    return {role for role, size in sizes.items() if size.desired == 1 and (failed or live[role] <= 1)}


def _renewed_account(ctx: Context, observed: Observed) -> str | None:
    """Uid of the routers' ServiceAccount where it was made again after them: their tokens are bound to the old uid."""
    name = ctx.child_name(contract.ROUTER)
    account, routers = observed.child(SERVICE_ACCOUNT, name), observed.child(DEPLOYMENT, name)
    if account is None or routers is None:
        return None
    is_later = account["metadata"]["creationTimestamp"] > routers["metadata"]["creationTimestamp"]
    return account["metadata"]["uid"] if is_later else None


def _desired_revisions(
    ctx: Context, engines: Sequence[EngineTemplate], sizes: Mapping[str, SizeDecision]
) -> list[DesiredRevision]:
    return [
        DesiredRevision(e.role, e.revision, e.fingerprint, sizes[e.role].desired, gpus_per_replica(ctx.pools[e.role]))
        for e in engines
    ]


def _rollout(
    ctx: Context,
    desired: Sequence[DesiredRevision],
    running: Sequence[RunningRevision],
    failed: RolloutFailure | None,
) -> Rollout:
    spec, budget = ctx.spec.rollout, ctx.spec.scaling.gpu_budget
    if failed is None:
        return plan_rollout(desired, running, budget, spec.allow_downtime)
    stop = spec.on_failure is OnFailure.STOP
    return plan_fallback(desired, fallback(desired, running), running, budget, spec.allow_downtime, keep_failed=stop)


def _current_deployments(
    ctx: Context,
    observed: Observed,
    engines: Sequence[EngineTemplate],
    sizes: Mapping[str, SizeDecision],
    rollout: Rollout,
    failed: RolloutFailure | None,
) -> list[Manifest]:
    """Of the revision that the spec asks for. One that has failed does not have the size of the pool."""
    served = {(w.role, w.revision) for w in observed.workloads if w.served}
    served |= rollout.serving if rollout.reason or served else frozenset()
    manifests: list[Manifest] = []
    for e in engines:
        goes_on = rollout.fallback.get(e.role, "" if failed else e.revision) == e.revision
        desired = sizes[e.role].desired if goes_on else None
        note = failed.to_note() if failed and not goes_on else ""
        has_served = (e.role, e.revision) in served
        manifests.append(
            engine_deployment(ctx, e, rollout.current[e.role], desired, rollout.surge, has_served, failed=note)
        )
    return manifests


def _pool_scalers(
    ctx: Context, observed: Observed, sizes: Mapping[str, SizeDecision]
) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """PoolScalers to create, with the size that runs now, and those to keep; both empty unless the mode is External."""
    if ctx.spec.scaling.mode is not ScalingMode.EXTERNAL:
        return (), ()
    missing = [role for role in ctx.pools if observed.child(POOL_SCALER, scaler_name(ctx, role)) is None]
    create = stamp(ctx, (pool_scaler(ctx, role) for role in missing))
    for role, manifest in zip(missing, create, strict=True):
        manifest["spec"]["replicas"] = sizes[role].desired
    return tuple(create), tuple(pool_scaler(ctx, role) for role in ctx.pools if role not in missing)


def _old_deployments(observed: Observed, rollout: Rollout, sizes: Mapping[str, SizeDecision]) -> list[Manifest]:
    """An old revision cannot be rendered any more: what we own of it is applied again, with its new size. That may be
    nothing: a backup tool that restores an object, or `kubectl replace`, owns all of it.

    The annotation with the size of the pool stands on the current revision only, or on that which goes on for it.
    """
    manifests: list[Manifest] = []
    for workload in observed.workloads:
        replicas = rollout.old.get((workload.role, workload.revision))
        live = observed.child(DEPLOYMENT, workload.name)
        if replicas is None or live is None:
            continue
        manifest = extract(live)
        manifest.setdefault("spec", {})["replicas"] = replicas
        annotations = manifest["metadata"].setdefault("annotations", {})
        annotations.pop(contract.ANNOTATION_DESIRED, None)
        if rollout.fallback.get(workload.role) == workload.revision:
            size = sizes[workload.role].desired if workload.role in sizes else replicas
            annotations[contract.ANNOTATION_DESIRED] = str(size)
        if (workload.role, workload.revision) in rollout.serving:
            annotations[contract.ANNOTATION_SERVED] = "true"
        manifests.append(manifest)
    return manifests


def _prunable(live: Manifest) -> bool:
    return live["kind"] != "Pod" and "deletionTimestamp" not in live["metadata"]


def _ref(manifest: Manifest) -> tuple[str, str]:
    return (manifest["kind"], manifest["metadata"]["name"])
