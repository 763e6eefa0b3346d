"""The stream of a decode request: bytes for the client, the moments of its tokens, and why it failed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable

import aiohttp

from phasewise_runtime.router.assembly import assemble
from phasewise_runtime.router.engine_client import DISCONNECTED, TRUNCATED, EngineAnswer, EngineError
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.sse import Fault, Json, StreamReader

MAX_HELD = 1024 * 1024
"""Bytes held back while the first token is awaited."""


class Watchdog:
    """Closes a response that stays silent while it is read. A token costs one assignment, no timer."""

    def __init__(self, response: aiohttp.ClientResponse, limit: float) -> None:
        self._response = response
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._since: float | None = None
        self.expired = False
        self._timer = self._loop.call_later(limit, self._check)

    def reading(self) -> None:
        self._since = self._loop.time()

    def idle(self) -> None:
        self._since = None

    def limit(self, seconds: float) -> None:
        self._limit = seconds
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._check)

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        silent = 0.0 if self._since is None else self._loop.time() - self._since
        if silent >= self._limit:
            self.expired = True
            self._response.close()
        else:
            self._timer = self._loop.call_later(max(self._limit - silent, 0.001), self._check)


class DecodeStream:
    def __init__(
        self,
        response: aiohttp.ClientResponse,
        pod: Pod,
        reader: StreamReader,
        *,
        first_token_seconds: float,
        gap_seconds: float,
        on_gap: Callable[[float], None],
    ) -> None:
        self.response = response
        self.pod = pod
        self.reader = reader
        self.first_at: float | None = None
        self.last_at: float | None = None
        self._gap_seconds = gap_seconds
        self._on_gap = on_gap
        self._clock = time.monotonic
        self._watchdog = Watchdog(response, first_token_seconds)

    async def until_answered(self) -> bytes:
        """Read to the first token (or an end without a token); returns the bytes to send with the head."""
        held = bytearray()
        while not self.reader.answered and len(held) < MAX_HELD:
            held += await self.read()
        if self.reader.fault and not self.reader.token_events:
            raise self._failure(self.reader.fault)
        self._watchdog.limit(self._gap_seconds)
        return bytes(held)

    async def read(self) -> bytes:
        """The next bytes for the client, empty at the end; EngineError where the stream breaks off or fails."""
        while True:
            if self.reader.fault:
                raise self._failure(self.reader.fault)
            if self.reader.done:
                return b""
            chunk = await self._chunk()
            before = self.reader.token_events
            out = self.reader.feed(chunk)
            if self.reader.token_events > before:
                self._tokens(self.reader.token_events - before)
            if out:
                return out

    async def assembled(self, frame: Json) -> EngineAnswer:
        """Read to the end and make one answer of the stream; NotAssemblableError where it does not fit the frame."""
        while await self.read():
            pass
        await self.finish()
        body = assemble(frame, self.reader.events)
        not_kept = ("content-type", "cache-control")
        headers = [(k, v) for k, v in self.response.headers.items() if k.lower() not in not_kept]
        raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        return EngineAnswer(200, [("Content-Type", "application/json"), *headers], raw)

    async def finish(self) -> None:
        """Read to the end of the response, so that its connection can be used again."""
        self._watchdog.stop()
        with contextlib.suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
            if self.reader.done:
                await asyncio.wait_for(self.response.content.read(), 1.0)

    def close(self) -> None:
        """Keep the connection if the response was read to its end; else close it, which aborts the request."""
        self._watchdog.stop()
        if self.response.content.at_eof() and not self.response.closed:
            self.response.release()
        else:
            self.response.close()

    async def _chunk(self) -> bytes:
        self._watchdog.reading()
        try:
            chunk = await self.response.content.readany()
        except aiohttp.SocketTimeoutError as e:
            raise EngineError(self.pod, "silent", "the engine sent no token in time") from e
        except asyncio.TimeoutError as e:
            raise EngineError(self.pod, "deadline", "the request took longer than a request may", blame=False) from e
        except (aiohttp.ClientError, OSError) as e:
            if self._watchdog.expired:
                raise EngineError(self.pod, "silent", "the engine sent no token in time") from e
            raise EngineError(self.pod, DISCONNECTED, "the engine's connection broke", hard=True) from e
        finally:
            self._watchdog.idle()
        if not chunk:
            raise EngineError(self.pod, TRUNCATED, "the engine's stream broke off before its end", hard=True)
        return chunk

    def _tokens(self, events: int) -> None:
        now = self._clock()
        if self.last_at is None:
            self.first_at = now
        else:
            self._on_gap(now - self.last_at)
        for _ in range(events - 1):
            self._on_gap(0.0)
        self.last_at = now

    def _failure(self, fault: Fault) -> EngineError:
        answer = None
        if fault.error is not None:
            body = json.dumps({"error": fault.error}).encode()
            answer = EngineAnswer(fault.status, [("Content-Type", "application/json")], body)
        return EngineError(
            self.pod,
            fault.reason,
            fault.message,
            hard=fault.reason == "abort",
            blame=fault.status >= 500,
            suspect_prefill=fault.reason == "error_event" and fault.status >= 500,
            answer=answer,
        )
