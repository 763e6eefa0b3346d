"""Puts the router's parts together, runs them, and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable

from aiohttp import web

from phasewise_runtime.router.admin import build_admin
from phasewise_runtime.router.admission import Admission
from phasewise_runtime.router.app import build_app
from phasewise_runtime.router.auth import CHECK_SECONDS, ApiKeys
from phasewise_runtime.router.canary import Canaries
from phasewise_runtime.router.collectors import PendingCollector
from phasewise_runtime.router.context import RouterContext
from phasewise_runtime.router.discovery import Discovery
from phasewise_runtime.router.engine_client import EngineClient, open_session
from phasewise_runtime.router.handler import CompletionHandler
from phasewise_runtime.router.health import probe_forever
from phasewise_runtime.router.intake import Intake
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.settings import Settings
from phasewise_runtime.router.static_pods import watch_file
from phasewise_runtime.router.timing import now

log = logging.getLogger(__name__)

Source = Callable[[PodRegistry], Awaitable[None]]


class Server:
    """Use as an async context manager; `drain` before leaving lets running requests end."""

    def __init__(self, settings: Settings, source: Source | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.pod_registry = PodRegistry(self.metrics, now)
        self.port = self.admin_port = 0
        self._source = source or self._default_source
        self._stack = contextlib.AsyncExitStack()
        self._draining = False

    async def __aenter__(self) -> Server:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        settings, metrics, pod_registry = self.settings, self.metrics, self.pod_registry
        session = await self._stack.enter_async_context(open_session())
        admission = Admission(
            settings.max_concurrency, settings.queue_size, settings.hold_seconds, pod_registry.can_serve, metrics
        )
        pod_registry.on_change(admission.wake)
        engine_client = EngineClient(session, settings)
        context = RouterContext(settings, pod_registry, engine_client, metrics)
        metrics.registry.register(PendingCollector(context.pending, settings.ttft_target_seconds, now))
        self._handler = CompletionHandler(context, Intake(settings, metrics), admission)
        self._keys = ApiKeys(settings.api_keys_dir)
        self._background(lambda: self._source(pod_registry), "discovery")
        self._background(lambda: probe_forever(pod_registry, engine_client), "health")
        canaries = Canaries(pod_registry, engine_client, metrics)
        self._stack.push_async_callback(canaries.close)
        self._background(canaries.run_forever, "canaries")
        self._background(canaries.watch_transfers, "KV transfers")
        if settings.api_keys_dir is not None:
            self._background(self._reload_keys, "api keys")
        admin = build_admin(metrics, context.activity, self.not_ready)
        self._admin_site, self.admin_port = await self._listen(admin, settings.admin_port)
        app = build_app(context, self._keys, self._handler, self.not_ready)
        self._site, self.port = await self._listen(app, settings.port)
        log.info(
            "router started", extra={"port": self.port, "admin_port": self.admin_port, "model": settings.model_name}
        )

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def not_ready(self) -> str | None:
        if self._draining:
            return "shutting down"
        return None if self.pod_registry.synced else "the pods have not been listed yet"

    async def drain(self) -> None:
        """Become not ready, go on serving while endpoints are updated, then wait for the running requests."""
        self._draining = self._handler.draining = True
        log.info("draining", extra={"requests": self._handler.running})
        await asyncio.sleep(self.settings.settle_seconds)
        await self._site.stop()
        if not await self._handler.idle(self.settings.max_generation_seconds):
            log.warning("requests cut off at the deadline", extra={"requests": self._handler.running})

    # --- inside ----------------------------------------------------------------------------------------------
    async def _default_source(self, pod_registry: PodRegistry) -> None:
        if self.settings.static_pods is not None:
            self.metrics.discovery_up.set(1)
            await watch_file(self.settings.static_pods, pod_registry)
        else:
            await Discovery(self.settings, pod_registry, self.metrics).run()

    async def _listen(self, app: web.Application, port: int) -> tuple[web.TCPSite, int]:
        # A client that goes away cancels its handler, and with it the requests to engines.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, self.settings.host, port, backlog=1024)
        try:
            await site.start()
        except OSError as e:
            raise SystemExit(f"cannot listen on {self.settings.host}:{port}: {e.strerror}; choose another port") from e
        return site, runner.addresses[0][1]

    def _background(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        task = asyncio.create_task(_keep_running(work, name))
        self._stack.push_async_callback(_cancel, task)

    async def _reload_keys(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._keys.reload()


async def run(settings: Settings) -> None:
    """Serve until TERM or INT, then drain."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    async with Server(settings) as server:
        await stop.wait()
        await server.drain()
    log.info("router ended")


async def _keep_running(work: Callable[[], Awaitable[None]], name: str) -> None:
    while True:
        try:
            await work()
        except Exception:
            log.exception("background task failed; it is started again", extra={"task": name})
        await asyncio.sleep(1.0)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
