"""One client request from its body to the last byte of its answer: admit, exchange, relay, measure.

Imports aiohttp.web for the client's side; the engines' side is exchange's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from aiohttp import web

from phasewise_runtime.contract import HEADER_SERVER_TIMING
from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.admission import Admission
from phasewise_runtime.router.errors import ENGINE, ApiError
from phasewise_runtime.router.exchange import Exchange
from phasewise_runtime.router.headers import to_client, to_engine
from phasewise_runtime.router.intake import Intake
from phasewise_runtime.router.legs import EngineAnswer, LegError
from phasewise_runtime.router.measure import Meter
from phasewise_runtime.router.outcome import Outcome
from phasewise_runtime.router.rooms import Rooms
from phasewise_runtime.router.slo import Targets
from phasewise_runtime.router.stream import DecodeStream
from phasewise_runtime.router.timing import Timing, now, server_timing

log = logging.getLogger(__name__)

WRITE_MARGIN_SECONDS = 60.0
"""Beyond the longest generation: time for a slow client to take the rest; then its connection is closed."""


class Relay:
    def __init__(self, rooms: Rooms, intake: Intake, admission: Admission) -> None:
        self._rooms = rooms
        self._intake = intake
        self._admission = admission
        targets = Targets(rooms.settings.ttft_target_seconds, rooms.settings.itl_target_seconds)
        self._meter = Meter(rooms.metrics, targets)
        self.draining = False
        """Answers ask clients to close their connections."""
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self, timeout: float) -> bool:
        """Wait until no request runs; False where some still do after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True

    async def serve(self, request: web.Request, request_id: str, endpoint: proto.Endpoint) -> web.StreamResponse:
        """Answer one request."""
        outcome, exchange, settings = Outcome(), None, self._rooms.settings
        self._count(1)
        try:
            async with self._intake.body(request) as raw:
                exchange = self._exchange(request, request_id, endpoint, raw)
                seconds = settings.hold_seconds * 2 + settings.max_generation_seconds + WRITE_MARGIN_SECONDS
                with _limit(request, seconds):
                    async with self._admission.place():
                        exchange.timing.admitted = now()
                        with exchange:
                            return await self._answer(request, exchange, outcome)
        except ApiError as e:
            outcome.answered(e.status, e.code or e.type)
            raise
        except (asyncio.CancelledError, ConnectionError):
            outcome.left()
            raise
        finally:
            self._count(-1)
            self._meter.judge(exchange, outcome)
            if exchange:
                exchange.waiter.leave()
            self._record(request_id, endpoint, exchange, outcome)

    def _exchange(self, request: web.Request, request_id: str, endpoint: proto.Endpoint, raw: bytes) -> Exchange:
        timing, settings = Timing(read=now()), self._rooms.settings
        parsed = proto.read_request(
            endpoint, proto.parse_body(raw), model=settings.model_name, disaggregated=settings.disaggregated
        )
        self._rooms.metrics.arrivals.inc()
        self._rooms.activity.arrived()
        return Exchange(self._rooms, parsed, to_engine(request.headers.items(), request_id), timing, request_id)

    async def _answer(self, request: web.Request, exchange: Exchange, outcome: Outcome) -> web.StreamResponse:
        answer = await exchange.answer()
        if isinstance(answer, EngineAnswer):
            outcome.answered(answer.status)
            self._meter.whole(exchange, answer)
            whole = web.Response(status=answer.status, body=answer.body)
            return self._prepared(whole, exchange, answer.headers)
        response = web.StreamResponse(status=200)
        self._prepared(response, exchange, list(answer.response.headers.items()))
        await self._relay(request, response, exchange, answer, outcome)
        return response

    async def _relay(
        self,
        request: web.Request,
        response: web.StreamResponse,
        exchange: Exchange,
        stream: DecodeStream,
        outcome: Outcome,
    ) -> None:
        await response.prepare(request)
        self._meter.first(exchange, stream)
        try:
            await response.write(exchange.head)
            while chunk := await stream.read():
                await response.write(chunk)
        except LegError as failure:
            exchange.blame(failure)
            self._rooms.metrics.stream_errors.labels(failure.reason).inc()
            outcome.broke(failure.reason)
            # No [DONE] after it: a client that overlooks the error must not take this for a whole answer.
            await response.write(_error_event(failure))
            response.force_close()
        else:
            outcome.answered(200)
            self._meter.end(exchange, stream)
        await response.write_eof()
        await stream.finish()

    def _prepared(self, response: Any, exchange: Exchange, headers: list[tuple[str, str]]) -> web.StreamResponse:
        for name, value in to_client(headers, exchange.request_id):
            if name.lower() == "content-type":
                response.headers[name] = value
            else:
                response.headers.add(name, value)
        response.headers[HEADER_SERVER_TIMING] = server_timing(exchange.timing, _first(exchange))
        if self.draining:
            response.force_close()
        return response

    def _count(self, by: int) -> None:
        self.running += by
        if self.running:
            self._idle.clear()
        else:
            self._idle.set()

    def _record(self, request_id: str, endpoint: proto.Endpoint, exchange: Exchange | None, outcome: Outcome) -> None:
        self._rooms.metrics.requests.labels(endpoint.label, outcome.name, str(outcome.code)).inc()
        extra: dict[str, Any] = {
            "request_id": request_id,
            "endpoint": endpoint.label,
            "outcome": outcome.name,
            "code": outcome.code,
        }
        if outcome.error:
            extra["error"] = outcome.error
        if exchange:
            extra["prefill_pod"] = exchange.prefill_pod.name if exchange.prefill_pod else None
            extra["decode_pod"] = exchange.decode_pod.name if exchange.decode_pod else None
            extra["alone"] = exchange.alone
            extra["seconds"] = round(now() - exchange.timing.read, 4)
        log.info("request", extra=extra)


def _first(exchange: Exchange) -> float | None:
    return exchange.stream.first_at if exchange.stream else None


def _error_event(failure: LegError) -> bytes:
    """The engine's own error where it sent one, else ours; after a blank line, should an event have been cut off."""
    if failure.answer is not None:
        return b"data: " + failure.answer.body + b"\n\n"
    message = f"The stream is incomplete: {failure.message}."
    return ApiError(502, message, type=ENGINE, code=failure.reason).event()


@contextlib.contextmanager
def _limit(request: web.Request, seconds: float):
    """Cut a client's connection after `seconds`: one that takes no bytes would otherwise hold a place for ever."""

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    timer = asyncio.get_running_loop().call_later(seconds, cut)
    try:
        yield
    finally:
        timer.cancel()
