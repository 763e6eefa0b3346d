"""Reads request bodies, within limits of size, of memory for all of them, and of time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from aiohttp import web

from phasewise_runtime.router.admission import overloaded
from phasewise_runtime.router.errors import ApiError
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.settings import Settings


class Intake:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._held = 0

    @contextlib.asynccontextmanager
    async def body(self, request: web.Request) -> AsyncGenerator[bytes, None]:
        """The complete body, which counts as held in memory until the block ends; ApiError where it is refused."""
        if request.content_type != "application/json":
            raise ApiError(415, "The content type is not JSON: send 'Content-Type: application/json'.")
        size = self._size(request)
        if self._held + size > self._settings.held_body_bytes:
            raise overloaded("The bodies of the requests being served take all the memory that is allowed for bodies.")
        self._hold(size)
        try:
            raw = await self._read(request)
            self._hold(len(raw) - size)
            size = len(raw)
            yield raw
        finally:
            self._hold(-size)

    def _size(self, request: web.Request) -> int:
        """Bytes to set aside before the body is read: the limit, where no Content-Length gives its size."""
        limit, declared = self._settings.max_body_bytes, request.content_length
        if declared is None or "Content-Encoding" in request.headers:
            return limit
        if declared > limit:
            raise self._too_large()
        return declared

    async def _read(self, request: web.Request) -> bytes:
        seconds = self._settings.upload_seconds
        try:
            return await asyncio.wait_for(request.read(), seconds)
        except asyncio.TimeoutError as e:
            message = f"The request body did not arrive within {seconds:g} s: send less, or over a faster connection."
            raise ApiError(408, message, code="upload_timeout") from e
        except web.HTTPRequestEntityTooLarge as e:
            raise self._too_large() from e
        except web.RequestPayloadError as e:
            encoding = request.headers.get("Content-Encoding", "identity")
            message = f"The request body cannot be read: send all of it in the encoding of its header, {encoding}."
            raise ApiError(400, message) from e

    def _too_large(self) -> ApiError:
        limit = self._settings.max_body_bytes
        return ApiError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")

    def _hold(self, by: int) -> None:
        self._held += by
        self._metrics.body_bytes.set(self._held)
