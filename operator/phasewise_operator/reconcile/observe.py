"""What is there: the store's view of one service, and what no watch shows. I/O.

A pod whose containers do not start for a missing secret or volume says so only in its Events. So Events are read, of
pods with a container that is still being created: its volumes are mounted, or its image is pulled.
"""

from __future__ import annotations

import logging
from typing import Final

from phasewise_operator.kinds import EVENT, POD, Manifest
from phasewise_operator.kube import Kube, KubeError
from phasewise_operator.live_values import mapping
from phasewise_operator.observed import Observed, PodEvent, container_statuses
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)
_CREATING: Final = ("ContainerCreating", "PodInitializing")


async def observe(store: Store, kube: Kube, key: Key, uid: str) -> Observed:
    """Children that the service with `uid` owns, and all pods of that name."""
    creating = [pod for pod in store.children(key, POD) if _is_creating(pod)]
    events = {pod["metadata"]["name"]: await _events(kube, pod) for pod in creating}
    return Observed.of(store.children(key), uid, events, (store.service(key) or {}).get("status"))


async def _events(kube: Kube, pod: Manifest) -> list[PodEvent]:
    meta = pod["metadata"]
    fields = f"regarding.kind=Pod,regarding.name={meta['name']},regarding.uid={meta['uid']}"
    try:
        events = (await kube.list(EVENT, meta["namespace"], fieldSelector=fields)).items
    except KubeError as error:
        log.warning("events of pod %s: %s", meta["name"], error)
        return []
    return sorted((PodEvent.of(event) for event in events), key=lambda event: event.last_seen)


def _is_creating(pod: Manifest) -> bool:
    """Init containers that have ended do not count: the engine's image is pulled after them."""
    states = [container["state"] for container in container_statuses(mapping(pod.get("status")))]
    waiting = [state["waiting"].get("reason") for state in states if state.get("waiting")]
    return (
        "deletionTimestamp" not in pod["metadata"]
        and bool(waiting)
        and all(reason in _CREATING for reason in waiting)
        and bool(mapping(pod.get("spec")).get("nodeName"))
    )
