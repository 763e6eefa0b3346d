"""The operator's life: stand by, lead for a term, stand by again, until the process is stopped.

Losing the Lease, a watch that ends in an error or an API server that does not answer ends a term, not the process: a
crash loop would cost minutes, a new term takes seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError, NotLeadingError
from phasewise_operator.lease_thread import HEARTBEAT_SECONDS, LeaseThread
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile.reconciler import Reconciler
from phasewise_operator.reconcile.status_writer import EventRecorder, StatusWriter
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.render.context import Images, Permissions, PodPeer
from phasewise_operator.scaling.loop import Deps, Loop
from phasewise_operator.scaling.scrape import Scraper
from phasewise_operator.settings import Settings
from phasewise_operator.store import Key, Store
from phasewise_operator.watch import Watches

log = logging.getLogger(__name__)
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Operator:
    settings: Settings
    kube: Kube
    metrics: Metrics
    stop: asyncio.Event
    lease: LeaseThread

    async def run(self) -> None:
        """Until `stop` is set; then writes in flight are awaited and the Lease is given up."""
        await self.lease.start()
        kube = self.kube.gated(self.lease.seconds_to_write)
        heartbeat = asyncio.create_task(self._beat())
        stopping = asyncio.create_task(self.stop.wait())
        while not self.stop.is_set():
            term = asyncio.create_task(self._lead(kube), name="term")
            await asyncio.wait({term, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await _end([term])
            await kube.finish_writes()
            await asyncio.wait({stopping}, timeout=PAUSE_SECONDS)
        await self.lease.stop()
        await _end([heartbeat])

    async def _beat(self) -> None:
        while True:
            self.lease.beat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _lead(self, kube: Kube) -> None:
        """One term: from acquiring the Lease until it, or anything that runs under it, ends."""
        await self.lease.began()
        await first_to_end(self.lease.ended(), self._act(kube))

    async def _act(self, kube: Kube) -> None:
        """Everything that only the leader does."""
        settings, namespaces = self.settings, self.settings.watch_namespaces
        store, queue = Store(), WorkQueue[Key](group=lambda key: key[0])
        await self._wait_for_crd(kube)
        images = Images(settings.runtime_image, settings.engine_image, settings.image_pull_policy)
        loop = Loop(Deps(store, queue, images, self.metrics.scaling, Scraper()))
        status = StatusWriter(kube, store, EventRecorder(kube))
        permissions = Permissions(settings.pod_templates == "Safe", settings.router_role, metrics_readers(settings))
        deletion_cost = settings.pod_deletion_cost
        reconciler = Reconciler(kube, store, images, settings.resync_seconds, loop, status, permissions, deletion_cost)
        worker = Worker(queue, reconciler, self.metrics)
        listeners = (queue.add, loop.service_changed)
        # A pool of one shrinks by the pod on the drained node only where that can be said of pods.
        watches = Watches(kube, store, namespaces, self.metrics.count_watch_error, listeners, deletion_cost)
        self.metrics.services.set_function(store.service_count)
        try:
            await first_to_end(watches.run(), loop.run(), *(worker.run() for _ in range(settings.workers)))
        finally:
            self.metrics.services.set_function(lambda: 0.0)  # who stands by knows none, and keeps no store

    async def _wait_for_crd(self, kube: Kube) -> None:
        """The operator may be up before its CRDs are served."""
        kind = INFERENCE_SERVICE
        while not await _is_served(kube):
            log.warning("no CRD %s.%s: install the chart with crds.install, or apply crds/", kind.plural, kind.group)
            await asyncio.sleep(self.settings.retry_seconds)


def metrics_readers(settings: Settings) -> tuple[PodPeer, ...] | None:
    """As in Context: this operator's pods, also those that stand by, and the monitoring system's."""
    if not settings.network_policy:
        return None
    own = PodPeer(settings.namespace, settings.pod_labels)
    monitoring = PodPeer(settings.monitoring_namespace, settings.monitoring_pod_labels)
    return (own, monitoring) if settings.monitoring_namespace else (own,)


async def first_to_end(*work: Coroutine[Any, Any, None]) -> None:
    """Run together; when the first ends, for whatever cause, log why and cancel the others."""
    tasks = [asyncio.create_task(w, name=getattr(w, "__qualname__", "task")) for w in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            _explain(task)
    finally:
        await _end(tasks)


def _explain(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, NotLeadingError):
        log.warning("stopped acting: %s was asked for without the lease", error)
    elif error is not None:
        log.warning("%s ended: %s: %s", task.get_name(), type(error).__name__, error)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _is_served(kube: Kube) -> bool:
    try:
        found = await kube.call("GET", f"/apis/{INFERENCE_SERVICE.api_version}")
    except KubeError as error:
        if error.status == 404:
            return False
        raise
    return any(r["name"] == INFERENCE_SERVICE.plural for r in found.get("resources", []))
