"""Carrying out a plan: server-side apply of what differs, deletion of what is not desired. I/O; decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from phasewise_operator.kinds import DEPLOYMENT, ROLE_BINDING, Manifest, kind_of
from phasewise_operator.kube import Kube, KubeError
from phasewise_operator.observed import Failure, Observed, owner_uid
from phasewise_operator.reconcile.managed_fields import owned_fields
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.store import Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)


async def apply_plan(
    kube: Kube, store: Store, plan: Plan, observed: Observed, uid: str, costs: Sequence[Manifest] = ()
) -> list[Failure]:
    """Raises NotLeadingError as soon as a write is not allowed any more; every other failure is returned.

    `costs`: annotations of pods that are to be there before a Deployment is made smaller.
    """
    made = await asyncio.gather(*(_create(kube, store, m, uid) for m in plan.create))
    failures = [f for f in made if f]
    await asyncio.gather(*(_recommend(kube, m) for m in costs))
    for wave in _waves(plan.write):
        results = await asyncio.gather(*(_write(kube, store, m, observed, uid) for m in wave))
        failures += [f for f in results if f]
    if not any(f.kind == DEPLOYMENT.name for f in failures):
        await asyncio.gather(*(_remove(kube, m) for m in plan.remove))
    return failures


def _waves(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """What others refer to goes first: a binding is refused before its role is known, a pod waits for its account."""
    later = (ROLE_BINDING.name, DEPLOYMENT.name)
    return [[m for m in manifests if (m["kind"] in later) is second] for second in (False, True)]


async def _write(kube: Kube, store: Store, intent: Manifest, observed: Observed, uid: str) -> Failure | None:
    kind, meta = kind_of(intent), intent["metadata"]
    try:
        if (kind.name, meta["name"]) not in observed.children:
            taken = _taken_by(await kube.get(kind, meta["namespace"], meta["name"]), intent, uid)
            if taken:
                return Failure(kind.name, meta["name"], "NameConflict", taken, refused=False)
        live = await kube.apply(intent)
    except KubeError as error:
        return Failure(
            kind.name, meta["name"], "ApplyRefused" if error.invalid else "ApplyFailed", str(error), error.invalid
        )
    log.info("applied %s %s/%s", kind.name, meta["namespace"], meta["name"])
    store.put(kind, live)
    return None


async def _create(kube: Kube, store: Store, intent: Manifest, uid: str) -> Failure | None:
    kind, meta = kind_of(intent), intent["metadata"]
    try:
        live = await kube.get(kind, meta["namespace"], meta["name"])
        taken = _taken_by(live, intent, uid)
        if taken:
            return Failure(kind.name, meta["name"], "NameConflict", taken, refused=False)
        if live is None:
            store.put(kind, await kube.create(kind, meta["namespace"], intent))
        else:  # ours, but for its label or its owner: it keeps the size that somebody gave it
            store.put(kind, await kube.apply({**intent, "spec": _without(intent["spec"], "replicas")}))
    except KubeError as error:
        return Failure(kind.name, meta["name"], "CreateFailed", str(error), error.invalid)
    log.info("created %s %s/%s", kind.name, meta["namespace"], meta["name"])
    return None


def _without(spec: Manifest, name: str) -> Manifest:
    return {key: value for key, value in spec.items() if key != name}


async def _recommend(kube: Kube, pod: Manifest) -> None:
    """Which pod goes is best effort: any of them drains."""
    try:
        await kube.apply(pod)
    except KubeError as error:
        log.info("cost of deletion of pod %s: %s", pod["metadata"]["name"], error)


def _taken_by(live: Manifest | None, intent: Manifest, uid: str) -> str:
    """Why an object that is there already must not be taken over; empty: the name is free, or the object ours."""
    kind, meta = kind_of(intent), intent["metadata"]
    if live is None or owner_uid(live) == uid or _is_orphan(live, intent):
        return ""
    owner = next((o for o in live["metadata"].get("ownerReferences", []) if o.get("controller")), None)
    whose = f"is controlled by {owner['kind']} {owner['name']}" if owner else "was made by somebody else"
    return f"{kind.name} {meta['name']} {whose}: delete or rename it, or give this InferenceService another name"


def _is_orphan(live: Manifest, intent: Manifest) -> bool:
    """A child of ours without an owner: edited by hand, or left by `kubectl delete --cascade=orphan`. It is adopted."""
    labels: dict[str, str] = live["metadata"].get("labels") or {}
    meant: dict[str, str] = intent["metadata"]["labels"]
    same = (contract.LABEL_MANAGED_BY, contract.LABEL_SERVICE)
    return owner_uid(live) is None and all(labels.get(k) == meant[k] for k in same) and bool(owned_fields(live))


async def _remove(kube: Kube, live: Manifest) -> None:
    kind, meta = kind_of(live), live["metadata"]
    await kube.delete(kind, meta["namespace"], meta["name"], meta["uid"])
    log.info("deleted %s %s/%s", kind.name, meta["namespace"], meta["name"])
