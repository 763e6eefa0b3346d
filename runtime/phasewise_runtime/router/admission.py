"""Limits the requests that are served at once and those that wait. A request waits before prefill, never between
prefill and decode.

A request is admitted when a place is free and some decode pod takes requests; first come, first served.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable

from phasewise_runtime.router.errors import ApiError
from phasewise_runtime.router.metrics import Metrics

RETRY_AFTER = 2
"""Seconds after which a refused client may try again."""


def no_engine(hold: float) -> ApiError:
    return ApiError(
        503,
        f"No engine pod became ready within {hold:g} s. Try again; if it lasts, see the InferenceService.",
        code="no_engine",
        retry_after=RETRY_AFTER,
    )


def overloaded(message: str, status: int = 429) -> ApiError:
    return ApiError(status, f"{message} Try again later.", code="overloaded", retry_after=RETRY_AFTER)


class Admission:
    def __init__(
        self, limit: int, queue_size: int, hold: float, can_serve: Callable[[], bool], metrics: Metrics
    ) -> None:
        self._limit = limit
        self._queue_size = queue_size
        self._hold = hold
        self._can_serve = can_serve
        self._metrics = metrics
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncGenerator[None, None]:
        """Hold a place; ApiError where there is none in time."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    def wake(self) -> None:
        """Admit the requests that can be served now; called when a place or a pod becomes free."""
        while self._waiting and self._open():
            future = self._waiting.popleft()
            if not future.done():
                self._count(1)
                future.set_result(None)
        self._metrics.queue_depth.set(len(self._waiting))

    async def _enter(self) -> None:
        if not self._waiting and self._open():
            self._count(1)
            return
        if len(self._waiting) >= self._queue_size:
            raise overloaded(
                f"{self._active} requests are being served and {len(self._waiting)} wait: the queue is full."
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._metrics.queue_depth.set(len(self._waiting))
        try:
            await asyncio.wait({future}, timeout=self._hold)
        except asyncio.CancelledError:
            if future.done():
                self._leave()
            raise
        finally:
            if not future.done():
                self._waiting.remove(future)
                self._metrics.queue_depth.set(len(self._waiting))
        if not future.done():
            raise self._too_late()

    def _too_late(self) -> ApiError:
        if self._can_serve():
            return overloaded(f"No place became free within {self._hold:g} s.", 503)
        return no_engine(self._hold)

    def _leave(self) -> None:
        self._count(-1)
        self.wake()

    def _open(self) -> bool:
        return self._active < self._limit and self._can_serve()

    def _count(self, by: int) -> None:
        self._active += by
        self._metrics.active.set(self._active)
