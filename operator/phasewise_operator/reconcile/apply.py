"""Carrying out changes: server-side apply of what differs, deletion of what is not desired. I/O; decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from phasewise_operator.kinds import DEPLOYMENT, ROLE_BINDING, Manifest, kind_of
from phasewise_operator.kube import Kube, KubeError
from phasewise_operator.live_values import mapping
from phasewise_operator.observed import Failure, Observed, owner_uid
from phasewise_operator.reconcile.conditions import Reason
from phasewise_operator.reconcile.contention import Contention
from phasewise_operator.reconcile.managed_fields import owned_fields
from phasewise_operator.reconcile.plan import Changes
from phasewise_operator.store import Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)


async def apply_changes(
    kube: Kube,
    store: Store,
    changes: Changes,
    observed: Observed,
    uid: str,
    contention: Contention,
    costs: Sequence[Manifest] = (),
) -> list[Failure]:
    """Raises NotLeadingError as soon as a write is not allowed any more; every other failure is returned.

    `uid`: of the service that owns the children. `costs`: annotations of pods that are to be there before a Deployment
    is made smaller.
    """
    created = await asyncio.gather(*(_create(kube, store, m, uid) for m in changes.create))
    failures = [f for f in created if f]
    await asyncio.gather(*(_annotate_deletion_cost(kube, m) for m in costs))
    for wave in _waves(changes.write):
        results = await asyncio.gather(*(_write(kube, store, m, observed, uid, contention) for m in wave))
        failures += [f for f in results if f]
    # What is replaced stays until what replaces it is there: engines, and the routers' right to find them.
    failed = {f.kind for f in failures}
    if DEPLOYMENT.name not in failed:
        await asyncio.gather(*(_remove(kube, m) for m in changes.remove if m["kind"] not in failed))
    return failures


def _waves(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """What others refer to goes first: a pod waits for its account."""
    later = (ROLE_BINDING.name, DEPLOYMENT.name)
    return [[m for m in manifests if (m["kind"] in later) is second] for second in (False, True)]


async def _write(
    kube: Kube, store: Store, intent: Manifest, observed: Observed, uid: str, contention: Contention
) -> Failure | None:
    kind, name = kind_of(intent), intent["metadata"]["name"]
    try:
        if contended := await contention.check(kube, intent):
            return contended
        if (kind.name, name) not in observed.children:
            await _get_ours(kube, intent, uid)
        store.put(kind, await kube.apply(intent))
    except KubeError as error:
        return _failure(intent, Reason.APPLY_REFUSED if error.invalid else "ApplyFailed", error)
    except NameConflictError as error:
        return Failure(kind.name, name, Reason.NAME_CONFLICT, str(error), refused=False)
    log.info("applied %s %s/%s", kind.name, intent["metadata"]["namespace"], name)
    return None


async def _create(kube: Kube, store: Store, intent: Manifest, uid: str) -> Failure | None:
    kind, meta = kind_of(intent), intent["metadata"]
    try:
        if await _get_ours(kube, intent, uid) is None:
            store.put(kind, await kube.create(kind, meta["namespace"], intent))
        else:  # ours, but without its label or its owner: what is not applied keeps the size that somebody gave it
            spec = {key: value for key, value in intent["spec"].items() if key != "replicas"}
            store.put(kind, await kube.apply({**intent, "spec": spec}))
    except KubeError as error:
        return _failure(intent, Reason.CREATE_FAILED, error)
    except NameConflictError as error:
        return Failure(kind.name, meta["name"], Reason.NAME_CONFLICT, str(error), refused=False)
    log.info("created %s %s/%s", kind.name, meta["namespace"], meta["name"])
    return None


async def _annotate_deletion_cost(kube: Kube, pod: Manifest) -> None:
    """Which pod goes is best effort: any of them drains."""
    try:
        await kube.apply(pod)
    except KubeError as error:
        log.info("cost of deletion of pod %s: %s", pod["metadata"]["name"], error)


async def _remove(kube: Kube, live: Manifest) -> None:
    kind, meta = kind_of(live), live["metadata"]
    await kube.delete(kind, meta["namespace"], meta["name"], meta["uid"])
    log.info("deleted %s %s/%s", kind.name, meta["namespace"], meta["name"])


def _failure(intent: Manifest, reason: str, error: KubeError) -> Failure:
    return Failure(intent["kind"], intent["metadata"]["name"], reason, str(error), error.invalid)


class NameConflictError(Exception):
    """An object of a child's name exists that is not ours; the message says what to do."""


async def _get_ours(kube: Kube, intent: Manifest, uid: str) -> Manifest | None:
    """The live object of the child's name; None: there is none. Raises NameConflictError where it is not ours."""
    kind, meta = kind_of(intent), intent["metadata"]
    live = await kube.get(kind, meta["namespace"], meta["name"])
    if live is None or owner_uid(live) == uid or _is_orphan(live, intent):
        return live
    owner = next((o for o in live["metadata"].get("ownerReferences", []) if o.get("controller")), None)
    whose = f"is controlled by {owner['kind']} {owner['name']}" if owner else "was made by somebody else"
    advice = "delete or rename it, or give this InferenceService another name"
    raise NameConflictError(f"{kind.name} {meta['name']} {whose}: {advice}")


def _is_orphan(live: Manifest, intent: Manifest) -> bool:
    """A child of ours without an owner: edited by hand, or left by `kubectl delete --cascade=orphan`. It is adopted.

    Its labels may have been removed, too: managedFields say that we applied it. Labels of another are respected."""
    labels = mapping(live["metadata"].get("labels"))
    ours: dict[str, str] = intent["metadata"]["labels"]
    same = (contract.LABEL_MANAGED_BY, contract.LABEL_SERVICE)
    return owner_uid(live) is None and all(labels.get(k, ours[k]) == ours[k] for k in same) and bool(owned_fields(live))
