"""The thread that must go on while the operator is busy: it holds the Lease, and answers probes and scrapes. I/O.

It has an event loop and a connection of its own, so neither a pass over 1,000 services nor a slow list delays a
renewal. In return it watches the main event loop: an operator whose loop hangs must not keep others from leading.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from phasewise_operator.kube import Kube
from phasewise_operator.lease import Election, is_set_within
from phasewise_operator.metrics import Metrics, start_server
from phasewise_operator.rivals import Releases
from phasewise_operator.settings import Settings

log = logging.getLogger(__name__)
HEARTBEAT_SECONDS = 1.0
HANG_SECONDS = 45.0
"""A main event loop that has not run for so long hangs. To begin beside 1,000 services blocks it for single seconds,
ten times as long where the machine has ten times too much to do; the next leader need not wait for a minute."""
RELEASE_SECONDS = 12.0
"""Time for a renewal in flight to end and for the release."""


class LeaseThread:
    """`start`, then `began` and `ended` in turns, then `stop`, all in the main event loop, which calls `beat` often."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        connect: Callable[[], Awaitable[Kube]] = Kube.connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._connect = connect
        self._clock = clock
        self._beat = clock()
        self._election: Election | None = None
        self._began, self._ended = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        """Raises KubeError or OSError where there is no cluster to talk to, or the port is taken."""
        self._main = asyncio.get_running_loop()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(self._started)

    def beat(self) -> None:
        """The main event loop runs."""
        self._beat = self._clock()

    def seconds_to_write(self) -> float:
        """See Election."""
        return self._election.seconds_to_write() if self._election else 0.0

    async def began(self) -> None:
        """Returns when this operator leads."""
        await self._began.wait()

    async def ended(self) -> None:
        """Returns when it does not lead any more."""
        await self._ended.wait()

    async def stop(self) -> None:
        """Release the Lease and end the thread."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, RELEASE_SECONDS)

    # --- in the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except Exception as error:
            if not self._started.done():
                self._started.set_exception(error)
                return
            log.exception("the lease's thread failed; probes are not answered any more, so the kubelet restarts this")
            self._tell(False)

    async def _work(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        kube = await self._connect()
        try:
            rivals = Releases(kube, self._settings, self._metrics.overlapping_releases, self._clock)
            election = self._election = Election(kube, self._settings, rivals, self._clock)
            runner = await start_server(self._settings.port, self._metrics, self._health)
            self._started.set_result(None)
            await self._elect(election)
            await runner.cleanup()
        finally:
            await kube.close()

    async def _elect(self, election: Election) -> None:
        """Stand by, hold the Lease, stand by again, until `stop`."""
        while not self._stop.is_set():
            if not self._alive() or not await election.take():
                await is_set_within(self._stop, election.pause)
                continue
            self._tell(True)
            await election.hold(self._stop, self._alive)
            self._tell(False)
        await election.release()

    def _alive(self) -> bool:
        return self._clock() - self._beat < HANG_SECONDS

    def _health(self) -> tuple[bool, str]:
        """For the probes: whether the operator lives, and what it does."""
        if not self._alive():
            return False, f"the event loop has not run for {self._clock() - self._beat:.0f} s"
        leading = self._election is not None and self._election.leading()
        return True, "leading" if leading else f"standing by: {self._election and self._election.standby}"

    def _tell(self, leading: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the main event loop has ended
            self._main.call_soon_threadsafe(self._set, leading)

    def _set(self, leading: bool) -> None:
        self._metrics.leading.set(leading)
        begin, end = (self._began, self._ended) if leading else (self._ended, self._began)
        begin.set()
        end.clear()
