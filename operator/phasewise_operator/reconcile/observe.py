"""What is there: the store's view of one service, and what no watch shows. I/O.

Pods whose containers do not start for a missing secret or volume say so only in Events. So Events are read, and only of
pods whose containers are being created.
"""

from __future__ import annotations

import logging
from typing import Final

from phasewise_operator.kinds import EVENT, POD, Manifest
from phasewise_operator.kube import Kube, KubeError
from phasewise_operator.observed import Observed, PodEvent, container_statuses
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)
_CREATING: Final = ("ContainerCreating", "PodInitializing")


async def observe(store: Store, kube: Kube, key: Key, uid: str) -> Observed:
    """Children that the service with `uid` owns, and all pods of that name."""
    creating = [pod for pod in store.children(key, POD) if _is_creating(pod)]
    events = {pod["metadata"]["name"]: await _events(kube, pod) for pod in creating}
    return Observed.of(store.children(key), uid, events)


async def _events(kube: Kube, pod: Manifest) -> list[PodEvent]:
    meta = pod["metadata"]
    fields = f"regarding.kind=Pod,regarding.name={meta['name']},regarding.uid={meta['uid']}"
    try:
        events = (await kube.list(EVENT, meta["namespace"], fieldSelector=fields)).items
    except KubeError as error:
        log.warning("events of pod %s: %s", meta["name"], error)
        return []
    return [PodEvent.of(event) for event in events]


def _is_creating(pod: Manifest) -> bool:
    statuses = container_statuses(pod.get("status", {}))
    reasons = [c.get("state", {}).get("waiting", {}).get("reason") for c in statuses]
    return (
        "deletionTimestamp" not in pod["metadata"]
        and bool(reasons)
        and all(reason in _CREATING for reason in reasons)
        and bool(pod.get("spec", {}).get("nodeName"))
    )
