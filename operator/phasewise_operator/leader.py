"""The operator's life: stand by, lead for a term, stand by again, until the process is stopped.

Losing the Lease, a watch that ends in an error or an API server that does not answer ends a term, not the process: a
crash loop would cost minutes, a new term takes seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from phasewise_operator import watch
from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_operator.kube import Kube, KubeError, NotLeadingError
from phasewise_operator.lease import Election
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile.reconciler import Reconciler
from phasewise_operator.reconcile.status_writer import EventRecorder, StatusWriter
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.render.context import Images, Permissions
from phasewise_operator.scaling.loop import Deps, Loop
from phasewise_operator.scaling.scrape import Scraper
from phasewise_operator.settings import Settings
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Operator:
    settings: Settings
    kube: Kube
    metrics: Metrics
    stop: asyncio.Event

    async def run(self) -> None:
        """Until `stop` is set; then the Lease is given up."""
        election = Election(self.kube, self.settings)
        stopping = asyncio.create_task(self.stop.wait())
        while not self.stop.is_set():
            leading = asyncio.create_task(self._lead(election), name="term")
            await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await _end([leading])
            self.metrics.leading.set(0)
            await asyncio.wait({stopping}, timeout=PAUSE_SECONDS)
        await election.release()

    async def _lead(self, election: Election) -> None:
        """One term: from acquiring the Lease until it, or anything that runs under it, ends."""
        await election.acquire()
        self.metrics.leading.set(1)
        await first_to_end(election.hold(), self._act(self.kube.gated(election.leading)))

    async def _act(self, kube: Kube) -> None:
        """Everything that only the leader does."""
        settings, namespaces = self.settings, self.settings.watch_namespaces
        store, queue = Store(), WorkQueue[Key]()
        await self._wait_for_crd(kube)
        await watch.list_all(kube, store, namespaces)
        for key in sorted(store.keys()):
            queue.add(key)
        self.metrics.services.set_function(lambda: len(store.keys()))
        images = Images(settings.runtime_image, settings.engine_image, settings.image_pull_policy)
        loop = Loop(Deps(store, queue, images, self.metrics.scaling, Scraper()))
        status = StatusWriter(kube, store, EventRecorder(kube))
        permissions = Permissions(settings.pod_templates == "Safe", settings.router_role)
        deletion_cost = settings.pod_deletion_cost
        reconciler = Reconciler(kube, store, images, settings.resync_seconds, loop, status, permissions, deletion_cost)
        worker = Worker(queue, reconciler, self.metrics)
        await first_to_end(
            watch.watch(watch.feeder(store, queue.add, loop.service_changed), namespaces),
            watch.resync(kube, store, namespaces, settings.resync_seconds, queue.add, loop.service_changed),
            loop.run(),
            *(worker.run() for _ in range(settings.workers)),
        )

    async def _wait_for_crd(self, kube: Kube) -> None:
        """The operator may be up before its CRDs are served."""
        kind = INFERENCE_SERVICE
        while not await _is_served(kube):
            log.warning("no CRD %s.%s: install the chart with crds.install, or apply crds/", kind.plural, kind.group)
            await asyncio.sleep(self.settings.retry_seconds)


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


async def _end(tasks: list[asyncio.Task[None]]) -> None:
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
