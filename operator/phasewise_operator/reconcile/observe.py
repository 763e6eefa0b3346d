"""What is there: the store's view of one service, and what no watch shows. I/O.

Pods whose containers do not start for a missing secret or volume say so only in Events, so those are read, and only for
pods that have been waiting to be created.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from phasewise_operator.kinds import EVENT, POD, Manifest
from phasewise_operator.kube import Kube, KubeError
from phasewise_operator.reconcile.evidence import EvidenceReader
from phasewise_operator.reconcile.state import Observed, PodView
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)
_CREATING: Final = ("ContainerCreating", "PodInitializing")
_MOUNT: Final = re.compile(r"FailedMount|FailedAttachVolume")


async def observe(store: Store, kube: Kube, evidence: EvidenceReader, key: Key, uid: str) -> Observed:
    """Children that the service with `uid` owns, all pods of that name, and what the routers say of KV transfer."""
    children: dict[tuple[str, str], Manifest] = {}
    pods: list[PodView] = []
    routers: list[str] = []
    for live in store.children(key):
        if live["kind"] == POD.name and live.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            continue  # evicted, or of a node that went: it holds nothing, and is replaced already
        if live["kind"] == POD.name:
            pod = PodView.of(live, await _mount_error(kube, live))
            pods.append(pod)
            if pod.role == contract.ROUTER and pod.ready and not pod.deleting:
                routers.append(live["status"].get("podIP", ""))
        elif owner_uid(live) == uid:
            children[live["kind"], live["metadata"]["name"]] = live
    return Observed(children, tuple(pods), await evidence.read([a for a in routers if a]))


def owner_uid(live: Manifest) -> str | None:
    """Uid of the controller of an object."""
    owners = live["metadata"].get("ownerReferences", [])
    return next((o["uid"] for o in owners if o.get("controller")), None)


async def _mount_error(kube: Kube, pod: Manifest) -> str:
    if not _is_creating(pod):
        return ""
    meta = pod["metadata"]
    fields = f"regarding.kind=Pod,regarding.name={meta['name']},regarding.uid={meta['uid']}"
    try:
        events = (await kube.list(EVENT, meta["namespace"], fieldSelector=fields)).items
    except KubeError as error:
        log.warning("events of pod %s: %s", meta["name"], error)
        return ""
    failed = [e for e in events if _MOUNT.fullmatch(e.get("reason", ""))]
    return failed[-1].get("note", "") if failed else ""


def _is_creating(pod: Manifest) -> bool:
    status = pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    reasons = [c.get("state", {}).get("waiting", {}).get("reason") for c in statuses]
    return (
        "deletionTimestamp" not in pod["metadata"]
        and bool(reasons)
        and all(r in _CREATING for r in reasons)
        and bool(pod.get("spec", {}).get("nodeName"))
    )
