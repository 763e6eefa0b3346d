"""Puts the rooms together, runs them, and ends them in order when told to."""

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
from phasewise_runtime.router.collectors import WaitingCollector
from phasewise_runtime.router.discovery import Discovery
from phasewise_runtime.router.fleet import Fleet
from phasewise_runtime.router.health import probe_forever
from phasewise_runtime.router.intake import Intake
from phasewise_runtime.router.legs import Legs, open_session
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.relay import Relay
from phasewise_runtime.router.rooms import Rooms
from phasewise_runtime.router.settings import Settings
from phasewise_runtime.router.static_pods import watch_file
from phasewise_runtime.router.timing import now

log = logging.getLogger(__name__)

Source = Callable[[Fleet], Awaitable[None]]


class Server:
    """Use as an async context manager; `drain` before leaving lets running requests end."""

    def __init__(self, settings: Settings, source: Source | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.fleet = Fleet(self.metrics, now)
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
        settings, metrics, fleet = self.settings, self.metrics, self.fleet
        session = await self._stack.enter_async_context(open_session())
        admission = Admission(
            settings.max_concurrency, settings.queue_size, settings.hold_seconds, fleet.can_serve, metrics
        )
        fleet.on_change(admission.wake)
        rooms = Rooms(settings, fleet, Legs(session, settings), metrics)
        metrics.registry.register(WaitingCollector(rooms.waiting, settings.ttft_target_seconds, now))
        self._relay = Relay(rooms, Intake(settings, metrics), admission)
        self._keys = ApiKeys(settings.api_keys_dir)
        self._background(lambda: self._source(fleet), "discovery")
        self._background(lambda: probe_forever(fleet, session), "health")
        if settings.api_keys_dir is not None:
            self._background(self._reload_keys, "api keys")
        admin = build_admin(metrics, rooms.activity, self.not_ready)
        self._admin_site, self.admin_port = await self._listen(admin, settings.admin_port)
        self._site, self.port = await self._listen(build_app(settings, self._keys, self._relay), settings.port)
        log.info(
            "router started", extra={"port": self.port, "admin_port": self.admin_port, "model": settings.model_name}
        )

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def not_ready(self) -> str | None:
        if self._draining:
            return "shutting down"
        return None if self.fleet.synced else "the pods have not been listed yet"

    async def drain(self) -> None:
        """Stop being ready, go on serving while that becomes known, then wait for what runs."""
        self._draining = self._relay.draining = True
        log.info("draining", extra={"requests": self._relay.running})
        await asyncio.sleep(self.settings.settle_seconds)
        await self._site.stop()
        if not await self._relay.idle(self.settings.max_generation_seconds):
            log.warning("requests cut off at the deadline", extra={"requests": self._relay.running})

    # --- inside ----------------------------------------------------------------------------------------------
    async def _default_source(self, fleet: Fleet) -> None:
        if self.settings.static_pods is not None:
            self.metrics.discovery_up.set(1)
            await watch_file(self.settings.static_pods, fleet)
        else:
            await Discovery(self.settings, fleet, self.metrics).run()

    async def _listen(self, app: web.Application, port: int) -> tuple[web.TCPSite, int]:
        # A client that goes away cancels its handler, and with it both legs.
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
