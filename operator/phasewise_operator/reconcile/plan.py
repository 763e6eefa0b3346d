"""From the spec and what is observed to the whole desired state: what to write, what to remove. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.kinds import DEPLOYMENT, POOL_SCALER, SERVICE_ACCOUNT, Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.managed_fields import extract, owned_fields, owns
from phasewise_operator.reconcile.sizes import pool_sizes
from phasewise_operator.render.children import constant_children, pool_scaler, scaler_name, stamp
from phasewise_operator.render.context import Context, RenderError, gpus_per_replica
from phasewise_operator.render.engine import EngineTemplate, engine_deployment, engine_template
from phasewise_operator.rollout import DesiredRevision, Rollout, RunningRevision, plan_rollout
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation, SizeDecision
from phasewise_runtime import contract


@dataclass(frozen=True)
class Plan:
    desired: tuple[Manifest, ...]
    engines: tuple[EngineTemplate, ...]
    rollout: Rollout
    sizes: Mapping[str, SizeDecision] = field(default_factory=dict[str, SizeDecision])
    """Size of each pool as a whole, and why, by role."""
    create: tuple[Manifest, ...] = ()
    """Made once, whole, and then applied without the field that is somebody else's from the start."""
    write: tuple[Manifest, ...] = ()
    """Of the desired children those that are missing or have drifted, in the order in which they are to be written."""
    remove: tuple[Manifest, ...] = ()
    """Live children that are not desired."""


def make_plan(ctx: Context, observed: Observed, recommendation: Recommendation = NO_RECOMMENDATION) -> Plan:
    """Raises RenderError where the spec cannot be rendered."""
    engines = tuple(engine_template(ctx, role) for role in ctx.pools)
    sizes = pool_sizes(ctx, observed, recommendation)
    rollout = plan_rollout(_wanted(ctx, engines, sizes), _running(observed), ctx.spec.scaling.gpu_budget)
    current = [engine_deployment(ctx, e, rollout.current[e.role], sizes[e.role].desired) for e in engines]
    create, scalers = _pool_scalers(ctx, observed, sizes)
    children = (*_constant_children(ctx, observed), *scalers, *current, *_old_deployments(observed, rollout))
    desired = tuple(stamp(ctx, children))
    names = {_ref(m) for m in desired}
    return Plan(
        desired=desired,
        engines=engines,
        rollout=rollout,
        sizes=sizes,
        create=create,
        write=tuple(m for m in desired if needs_write(m, observed)),
        remove=tuple(m for m in observed.children.values() if _ref(m) not in names and _prunable(m)),
    )


def repair_plan(ctx: Context, observed: Observed) -> tuple[Manifest, ...]:
    """For a spec whose engines cannot be rendered: what does not depend on them is kept as it should be."""
    try:
        children = stamp(ctx, _constant_children(ctx, observed))
    except RenderError:
        return ()
    return tuple(m for m in children if needs_write(m, observed))


def needs_write(intent: Manifest, observed: Observed) -> bool:
    """Missing, meant otherwise than when it was last applied, or no longer ours in every field."""
    live = observed.children.get(_ref(intent))
    if live is None:
        return True
    annotations: dict[str, str] = live["metadata"].get("annotations") or {}
    meant = intent["metadata"]["annotations"][contract.ANNOTATION_INTENT]
    return annotations.get(contract.ANNOTATION_INTENT) != meant or not owns(owned_fields(live), intent)


def _constant_children(ctx: Context, observed: Observed) -> list[Manifest]:
    return constant_children(dataclasses.replace(ctx, router_account=_renewed_account(ctx, observed)))


def _renewed_account(ctx: Context, observed: Observed) -> str | None:
    name = ctx.child_name(contract.ROUTER)
    account, routers = observed.child(SERVICE_ACCOUNT, name), observed.child(DEPLOYMENT, name)
    if account is None or routers is None:
        return None
    is_later = account["metadata"]["creationTimestamp"] > routers["metadata"]["creationTimestamp"]
    return account["metadata"]["uid"] if is_later else None


def _wanted(
    ctx: Context, engines: Sequence[EngineTemplate], sizes: Mapping[str, SizeDecision]
) -> list[DesiredRevision]:
    return [
        DesiredRevision(e.role, e.revision, e.fingerprint, sizes[e.role].desired, gpus_per_replica(ctx.pools[e.role]))
        for e in engines
    ]


def _pool_scalers(
    ctx: Context, observed: Observed, sizes: Mapping[str, SizeDecision]
) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Those that are to be made, with the size that runs now, and those that are kept; none but in mode External."""
    if ctx.spec.scaling.mode is not ScalingMode.EXTERNAL:
        return (), ()
    missing = [role for role in ctx.pools if observed.child(POOL_SCALER, scaler_name(ctx, role)) is None]
    create = stamp(ctx, (pool_scaler(ctx, role) for role in missing))
    for role, manifest in zip(missing, create, strict=True):
        manifest["spec"]["replicas"] = sizes[role].desired
    return tuple(create), tuple(pool_scaler(ctx, role) for role in ctx.pools if role not in missing)


def _running(observed: Observed) -> list[RunningRevision]:
    """Every revision that has a Deployment or still has pods: draining ones hold their GPUs."""
    pods = [p for p in observed.pods if p.role in contract.ENGINE_ROLES]
    count = Counter((p.role, p.revision) for p in pods)
    found = {
        (w.role, w.revision): RunningRevision(
            w.role, w.revision, w.fingerprint, w.replicas, w.ready, count[w.role, w.revision], w.gpus, w.served
        )
        for w in observed.workloads
        if w.role in contract.ENGINE_ROLES
    }
    for p in pods:
        left = RunningRevision(p.role, p.revision, "", 0, 0, count[p.role, p.revision], p.gpus, served=False)
        found.setdefault((p.role, p.revision), left)
    return list(found.values())


def _old_deployments(observed: Observed, rollout: Rollout) -> list[Manifest]:
    """An old revision cannot be rendered any more: what we own of it is applied again, with its new size.

    The size of the whole pool is told by the current revision alone.
    """
    manifests: list[Manifest] = []
    for workload in observed.workloads:
        replicas = rollout.old.get((workload.role, workload.revision))
        live = observed.child(DEPLOYMENT, workload.name)
        if replicas is None or live is None:
            continue
        manifest = extract(live)
        manifest["spec"]["replicas"] = replicas
        manifest["metadata"].get("annotations", {}).pop(contract.ANNOTATION_DESIRED, None)
        manifests.append(manifest)
    return manifests


def _prunable(live: Manifest) -> bool:
    return live["kind"] != "Pod" and "deletionTimestamp" not in live["metadata"]


def _ref(manifest: Manifest) -> tuple[str, str]:
    return (manifest["kind"], manifest["metadata"]["name"])
