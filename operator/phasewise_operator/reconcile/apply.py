"""Carrying out changes: server-side apply of what differs, deletion of what is not desired. I/O; decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, ROLE_BINDING, Manifest, kind_of
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.live_values import mapping
from phasewise_operator.observed import Failure, Observed, is_orphan, owner_uid
from phasewise_operator.reconcile.conditions import Reason
from phasewise_operator.reconcile.contention import Contention
from phasewise_operator.reconcile.failures import NAMESPACE_ENDS, WRITE_FAILED, Retries, failure
from phasewise_operator.reconcile.plan import Changes
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Applier:
    """Carries out changes of one service's children."""

    kube: Kube
    store: Store
    retries: Retries
    contention: Contention
    key: Key
    uid: str
    """Of the service, which owns the children."""

    async def apply(self, changes: Changes, observed: Observed, costs: Sequence[Manifest] = ()) -> list[Failure]:
        """Raises NotLeadingError as soon as a write is not allowed any more; every other failure is returned.

        `costs`: annotations of pods that are to be there before a Deployment is made smaller.
        """
        failures = await self._all(changes.create, Reason.CREATE_FAILED, self._create)
        await asyncio.gather(*(_annotate_deletion_cost(self.kube, m) for m in costs))

        async def write(intent: Manifest) -> None:
            known = observed.children.get((intent["kind"], intent["metadata"]["name"]))
            await self._write(intent, is_owned=known is not None and owner_uid(known) == self.uid)

        for wave in _waves(changes.write):
            failures += await self._all(wave, Reason.APPLY_REFUSED, write)
        # What is replaced stays until what replaces it is there: engines, and the routers' right to find them.
        failures += await self._all(_removable(changes, failures), Reason.DELETE_REFUSED, self._remove)
        self.retries.keep(self.key, failures)
        return failures

    def waiting(self, changes: Changes) -> list[Failure] | None:
        """What `apply` would return where all that it would try is held back now; None: it would try something."""
        manifests = [*changes.create, *changes.write]
        failures = [f for m in manifests if (f := self._held_back(m))]
        if len(failures) < len(manifests):
            return None
        replaced = _removable(changes, failures)
        refused = [f for m in replaced if (f := self.retries.held_back(self.key, m))]
        if len(refused) < len(replaced):
            return None
        self.retries.keep(self.key, [*failures, *refused])
        return [*failures, *refused]

    def _held_back(self, intent: Manifest) -> Failure | None:
        return self.retries.held_back(self.key, intent) or self.contention.held_back(intent)

    async def _all(
        self, manifests: Sequence[Manifest], refused: Reason, act: Callable[[Manifest], Awaitable[None]]
    ) -> list[Failure]:
        found = await asyncio.gather(*(self._try(m, refused, act) for m in manifests))
        return [failed for failed in found if failed]

    async def _try(
        self, manifest: Manifest, refused: Reason, act: Callable[[Manifest], Awaitable[None]]
    ) -> Failure | None:
        """`refused`: the reason where trying again is of no use."""
        if held_back := self.retries.held_back(self.key, manifest):
            return held_back
        try:
            await act(manifest)
        except ContendedError as error:
            self.retries.forget(self.key, manifest)
            return error.failure
        except KubeError as error:
            reason = refused if error.invalid else WRITE_FAILED
            failed = failure(manifest, NAMESPACE_ENDS if error.namespace_ends else reason, error)
        except NotOursError as error:
            reason = Reason.PROGRESSING if error.passes else Reason.NAME_CONFLICT
            failed = Failure(manifest["kind"], manifest["metadata"]["name"], reason, str(error), refused=False)
        else:
            return None
        level = logging.INFO if failed.reason in (NAMESPACE_ENDS, Reason.PROGRESSING) else logging.WARNING
        log.log(level, "%s/%s: %s %s: %s", *self.key, failed.kind, failed.name, failed.message)
        return self.retries.failed(self.key, manifest, failed)

    async def _write(self, intent: Manifest, is_owned: bool) -> None:
        kind, meta = kind_of(intent), intent["metadata"]
        if contended := await self.contention.check(self.kube, intent):
            raise ContendedError(contended)
        if not is_owned:
            await _get_ours(self.kube, intent, self.uid)
        self.store.put(kind, await self.kube.apply(intent))
        self.contention.applied(intent)
        log.info("applied %s %s/%s", kind.name, meta["namespace"], meta["name"])

    async def _create(self, intent: Manifest) -> None:
        """One that is there already lacks its label or its owner, or we ended between the two writes: what is not
        applied keeps the size that it has."""
        kind, meta = kind_of(intent), intent["metadata"]
        if await _get_ours(self.kube, intent, self.uid) is None:
            await self.kube.create(kind, meta["namespace"], _unchanging(intent))
        spec = {key: value for key, value in intent["spec"].items() if key != "replicas"}
        self.store.put(kind, await self.kube.apply({**intent, "spec": spec}))
        log.info("created %s %s/%s", kind.name, meta["namespace"], meta["name"])

    async def _remove(self, live: Manifest) -> None:
        kind, meta = kind_of(live), live["metadata"]
        if not await self.kube.delete(kind, meta["namespace"], meta["name"], meta["uid"]):
            return
        self.store.drop(kind, live)  # else each pass deletes it again until the watch shows that it has gone
        log.info("deleted %s %s/%s", kind.name, meta["namespace"], meta["name"])


def _removable(changes: Changes, failures: Sequence[Failure]) -> list[Manifest]:
    failed = {f.kind for f in failures}
    return [] if DEPLOYMENT.name in failed else [m for m in changes.remove if m["kind"] not in failed]


def _unchanging(intent: Manifest) -> Manifest:
    """What a POST sets belongs to its manager for ever, beside what is applied: a label of it could not be dropped.

    With its owner, so that it is known as ours, and the label that the chart's admission policy asks for."""
    meta = intent["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "ownerReferences")}
    labels = {contract.LABEL_MANAGED_BY: meta["labels"][contract.LABEL_MANAGED_BY]}
    return {**intent, "metadata": {**kept, "labels": labels}}


def _waves(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """What others refer to goes first: a pod waits for its account."""
    later = (ROLE_BINDING.name, DEPLOYMENT.name)
    return [[m for m in manifests if (m["kind"] in later) is second] for second in (False, True)]


async def _annotate_deletion_cost(kube: Kube, pod: Manifest) -> None:
    """Which pod goes is best effort: any of them drains."""
    try:
        await kube.apply(pod)
    except KubeError as error:
        log.info("cost of deletion of pod %s: %s", pod["metadata"]["name"], error)


class ContendedError(Exception):
    """Somebody else overwrites the child without end: it is not applied for a while."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class NotOursError(Exception):
    """An object of a child's name exists that is not ours; the message says what to do.

    `passes`: it is about to go, such as a child of a deleted service of this name that is not collected yet.
    """

    def __init__(self, message: str, passes: bool) -> None:
        super().__init__(message)
        self.passes = passes


async def _get_ours(kube: Kube, intent: Manifest, uid: str) -> Manifest | None:
    """The live object of the child's name; None: there is none. Raises NotOursError where it is not ours."""
    kind, meta = kind_of(intent), intent["metadata"]
    live = await kube.get(kind, meta["namespace"], meta["name"])
    if live is None or owner_uid(live) == uid or (is_orphan(live) and _has_our_labels(live, intent)):
        return live
    owner = next((o for o in live["metadata"].get("ownerReferences", []) if o.get("controller")), None)
    if owner and _is_service(owner, meta["labels"][contract.LABEL_SERVICE]):
        raise NotOursError("it is of the InferenceService that had this name before, and is to be collected", True)
    if "deletionTimestamp" in live["metadata"]:
        raise NotOursError("it is of somebody else, and is being deleted", True)
    whose = f"it is controlled by {owner['kind']} {owner['name']}" if owner else "it was made by somebody else"
    advice = "delete or rename it, or give this InferenceService another name"
    raise NotOursError(f"{whose}: {advice}", False)


def _is_service(owner: Manifest, name: str) -> bool:
    """KServe has a kind of that name, too."""
    ours = owner["apiVersion"].startswith(f"{contract.API_GROUP}/")
    return ours and (owner["kind"], owner["name"]) == (INFERENCE_SERVICE.name, name)


def _has_our_labels(live: Manifest, intent: Manifest) -> bool:
    """Of an orphan. They may have been removed, too; labels of another are respected."""
    labels = mapping(live["metadata"].get("labels"))
    ours: dict[str, str] = intent["metadata"]["labels"]
    same = (contract.LABEL_MANAGED_BY, contract.LABEL_SERVICE)
    return all(labels.get(k, ours[k]) == ours[k] for k in same)
