"""What is there: the store's view of one service, and what no watch shows. I/O.

A pod whose containers do not start for a missing secret or volume says so only in its Events. So Events are read, of
pods with a container that is still being created: its volumes are mounted, or its image is pulled. The API server reads
Events from etcd each time: most pods are past that state before theirs would be read, and of many only a few are asked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from phasewise_operator.kinds import EVENT, POD, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.live_values import mapping
from phasewise_operator.observed import Observed, PodEvent, container_statuses, has_ended
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)
_CREATING: Final = ("ContainerCreating", "PodInitializing")
CREATING_SECONDS: Final = 3.0
"""A pod that has been in that state for less is on its way."""
AGAIN_SECONDS: Final = 10.0
PODS_A_ROLE: Final = 3


@dataclass(frozen=True)
class _Pod:
    since: float
    """When it was first seen being created: the API server's clock may be another."""
    read: float = -math.inf
    events: tuple[PodEvent, ...] = ()

    @property
    def due(self) -> float:
        return max(self.since + CREATING_SECONDS, self.read + AGAIN_SECONDS)


@dataclass(frozen=True)
class Observer:
    clock: Callable[[], float] = time.monotonic
    pods: dict[Key, dict[str, _Pod]] = field(default_factory=dict[Key, dict[str, _Pod]])
    """Pods whose Events are read, by service and uid. It can be lost: they are read again."""

    async def observe(self, store: Store, kube: Kube, key: Key, uid: str) -> Observed:
        """Children that the service with `uid` owns or adopts, and all pods of that name."""
        creating = self._asked(key, store.children(key, POD))
        events = await asyncio.gather(*(self._events(kube, key, pod) for pod in creating))
        by_name = {pod["metadata"]["name"]: found for pod, found in zip(creating, events, strict=True)}
        status = (store.service(key) or {}).get("status")
        return Observed.of(store.children(key), uid, by_name, status, store.nodes.cordoned)

    def due_in(self, key: Key) -> float | None:
        """Seconds until Events are to be read; None: of no pod."""
        times = [pod.due for pod in self.pods.get(key, {}).values()]
        return max(0.0, min(times) - self.clock()) if times else None

    def forget(self, key: Key) -> None:
        self.pods.pop(key, None)

    def _asked(self, key: Key, pods: Sequence[Manifest]) -> list[Manifest]:
        """Of each role the pods that have been created for longest."""
        known, now = self.pods.pop(key, {}), self.clock()
        creating = [pod for pod in pods if _is_creating(pod)]
        creating.sort(key=lambda pod: known.get(pod["metadata"]["uid"], _Pod(now)).since)
        asked, count = list[Manifest](), Counter[str]()
        for pod in creating:
            role = pod["metadata"]["labels"].get(contract.LABEL_ROLE, "")
            count[role] += 1
            if count[role] <= PODS_A_ROLE:
                asked.append(pod)
        if asked:
            uids = [pod["metadata"]["uid"] for pod in asked]
            self.pods[key] = {uid: known.get(uid, _Pod(now)) for uid in uids}
        return asked

    async def _events(self, kube: Kube, key: Key, pod: Manifest) -> Sequence[PodEvent]:
        uid, now = pod["metadata"]["uid"], self.clock()
        known = self.pods[key][uid]
        if now >= known.due:
            known = replace(known, read=now, events=await _list_events(kube, pod))
            self.pods.setdefault(key, {})[uid] = known
        return known.events


async def _list_events(kube: Kube, pod: Manifest) -> tuple[PodEvent, ...]:
    meta = pod["metadata"]
    fields = f"regarding.kind=Pod,regarding.name={meta['name']},regarding.uid={meta['uid']}"
    try:
        events = (await kube.list(EVENT, meta["namespace"], fieldSelector=fields)).items
    except KubeError as error:
        log.warning("events of pod %s: %s", meta["name"], error)
        return ()
    return tuple(sorted((PodEvent.of(event) for event in events), key=lambda event: event.last_seen))


def _is_creating(pod: Manifest) -> bool:
    """Init containers that have ended do not count: the engine's image is pulled after them."""
    states = [container["state"] for container in container_statuses(mapping(pod.get("status")))]
    waiting = [state["waiting"].get("reason") for state in states if state.get("waiting")]
    return (
        "deletionTimestamp" not in pod["metadata"]
        and not has_ended(pod)
        and bool(waiting)
        and all(reason in _CREATING for reason in waiting)
        and bool(mapping(pod.get("spec")).get("nodeName"))
    )
