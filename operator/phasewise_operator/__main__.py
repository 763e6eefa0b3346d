"""Entry point: settings, logging, election; while leading, Kopf's watches feed the workers. The loop never gives up.

Losing the Lease, a watch that ends in an error or an API server that is away ends one term, not the process: a crash
loop would cost minutes, a new term takes seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import dataclass

import kopf

from phasewise_operator import handlers
from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_operator.kube import Kube, KubeError, NotLeadingError
from phasewise_operator.lease import Election
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile.controller import Controller
from phasewise_operator.render.context import Images
from phasewise_operator.server import start_server
from phasewise_operator.settings import Settings, SettingsError
from phasewise_operator.store import Key, Store

log = logging.getLogger("phasewise_operator")
PAUSE_SECONDS = 1.0


@dataclass
class Operator:
    """One process: it stands by or leads, term after term, until it is told to stop."""

    settings: Settings
    kube: Kube
    metrics: Metrics
    stop: asyncio.Event

    async def run(self) -> None:
        self.listen_for_signals()
        election = Election(self.kube, self.settings)
        stopping = asyncio.create_task(self.stop.wait())
        while not self.stop.is_set():
            leading = asyncio.create_task(self.lead(election))
            await asyncio.wait({leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await _end(leading)
            self.metrics.leading.set(0)
            if not self.stop.is_set():
                await asyncio.wait({stopping}, timeout=PAUSE_SECONDS)
        await election.release()

    def listen_for_signals(self) -> None:
        """Also called after Kopf has started: it takes the signals for itself, and we want them for all."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)

    async def lead(self, election: Election) -> None:
        """One term: from acquiring the Lease until it, or anything that runs under it, ends."""
        await election.acquire()
        self.metrics.leading.set(1)
        store, queue = Store(), WorkQueue[Key]()
        kube = self.kube.gated(election.leading)
        tasks = [
            asyncio.create_task(election.hold(), name="lease"),
            asyncio.create_task(self.act(kube, store, queue), name="act"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                _explain(task)
        finally:
            for task in tasks:
                await _end(task)

    async def act(self, kube: Kube, store: Store, queue: WorkQueue[Key]) -> None:
        """Everything that only the leader does; ends when any part of it does."""
        spaces = self.settings.watch_namespaces
        await self.wait_for_crd(kube)
        await handlers.list_all(kube, store, spaces)
        for key in sorted(store.keys()):
            queue.add(key)
        self.metrics.services.set_function(lambda: len(store.keys()))
        controller = Controller(kube, store, queue, self.images, self.metrics, self.settings.resync_seconds)
        registry = handlers.make_registry(store, queue, self.listen_for_signals)
        watches = kopf.operator(
            registry=registry,
            settings=kopf.OperatorSettings(),
            standalone=True,
            clusterwide=not spaces,
            namespaces=spaces,
        )
        work = [controller.work() for _ in range(self.settings.workers)]
        relist = handlers.resync(kube, store, queue, spaces, self.settings.resync_seconds)
        tasks = [asyncio.create_task(c) for c in (watches, relist, *work)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                _explain(task)
        finally:
            for task in tasks:
                await _end(task)

    async def wait_for_crd(self, kube: Kube) -> None:
        """The chart may bring the operator up before its CRDs are served."""
        kind = INFERENCE_SERVICE
        while True:
            served = await kube.get(kind, self.settings.namespace, "-")  # 404 for the object or for the resource
            if served is not None or await _is_served(kube):
                return
            log.warning(
                "the CRD %s.%s is not installed: helm installs it, or kubectl apply -f crds/", kind.plural, kind.group
            )
            await asyncio.sleep(self.settings.retry_seconds)

    @property
    def images(self) -> Images:
        return Images(self.settings.runtime_image, self.settings.engine_image, self.settings.image_pull_policy)


async def _is_served(kube: Kube) -> bool:
    try:
        found = await kube.call("GET", f"/apis/{INFERENCE_SERVICE.api_version}")
    except KubeError as error:
        if error.status == 404:
            return False
        raise
    return any(r["name"] == INFERENCE_SERVICE.plural for r in found.get("resources", []))


def _explain(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, NotLeadingError):
        log.warning("stopped acting: %s was asked for without the lease", error)
    elif error is not None:
        log.warning("%s ended: %s: %s", task.get_name(), type(error).__name__, error)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    if task.done() and not task.cancelled():
        task.exception()


async def serve(settings: Settings) -> None:
    metrics = Metrics()
    runner = await start_server(settings.port, metrics)
    kube = await Kube.connect()
    try:
        await Operator(settings, kube, metrics, asyncio.Event()).run()
    finally:
        await kube.close()
        await runner.cleanup()


def main() -> int:
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        print(f"phasewise-operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=settings.logging_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(max(settings.logging_level, logging.WARNING))
    try:
        asyncio.run(serve(settings))
    except KubeError as error:
        print(f"phasewise-operator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
