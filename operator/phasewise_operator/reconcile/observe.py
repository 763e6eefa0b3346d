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
from phasewise_operator.observed import Observed
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)
_CREATING: Final = ("ContainerCreating", "PodInitializing")
_MOUNT: Final = re.compile(r"FailedMount|FailedAttachVolume")


async def observe(store: Store, kube: Kube, key: Key, uid: str) -> Observed:
    """Children that the service with `uid` owns, and all pods of that name."""
    creating = [pod for pod in store.children(key, POD) if _is_creating(pod)]
    errors = {pod["metadata"]["name"]: await _mount_error(kube, pod) for pod in creating}
    return Observed.of(store.children(key), uid, errors)


async def _mount_error(kube: Kube, pod: Manifest) -> str:
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
