"""Handles one client request from its body to the last byte of its answer: admit, run, stream, measure.

The client's side of the request; pd_request is the engines' side.
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
from phasewise_runtime.router.context import RouterContext
from phasewise_runtime.router.engine_client import EngineAnswer, EngineError
from phasewise_runtime.router.errors import ApiError, of_engine
from phasewise_runtime.router.headers import to_client, to_engine
from phasewise_runtime.router.intake import Intake
from phasewise_runtime.router.latency import LatencyRecorder
from phasewise_runtime.router.outcome import Outcome
from phasewise_runtime.router.pd_request import PDRequest
from phasewise_runtime.router.slo import Targets
from phasewise_runtime.router.stream import DecodeStream
from phasewise_runtime.router.timing import Timing, now, server_timing

log = logging.getLogger(__name__)

WRITE_MARGIN_SECONDS = 60.0
"""Beyond the longest generation: time for a slow client to take the rest; then its connection is closed."""


class CompletionHandler:
    def __init__(self, context: RouterContext, intake: Intake, admission: Admission) -> None:
        self._context = context
        self._intake = intake
        self._admission = admission
        targets = Targets(context.settings.ttft_target_seconds, context.settings.itl_target_seconds)
        self._latency = LatencyRecorder(context.metrics, targets, context.pod_registry)
        self.draining = False
        """While true, answers ask clients to close their connections."""
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self, timeout: float) -> bool:
        """Wait until no request runs; False where some still run after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True

    async def serve(self, request: web.Request, request_id: str, endpoint: proto.Endpoint) -> web.StreamResponse:
        """Answer one request."""
        outcome, pd_request, settings = Outcome(), None, self._context.settings
        self._count(1)
        try:
            async with self._intake.body(request) as raw:
                pd_request = self._read(request, request_id, endpoint, raw)
                seconds = settings.hold_seconds * 2 + settings.max_generation_seconds + WRITE_MARGIN_SECONDS
                with _limit(request, seconds):
                    async with self._admission.place():
                        pd_request.timing.admitted = now()
                        with pd_request:
                            return await self._answer(request, pd_request, outcome)
        except ApiError as e:
            outcome.answered(e.status, e.code or e.type)
            raise
        except (asyncio.CancelledError, ConnectionError):
            outcome.client_closed()
            raise
        finally:
            self._count(-1)
            self._latency.judge(pd_request, outcome)
            if pd_request:
                pd_request.pending.leave()
            self._record(request_id, endpoint, pd_request, outcome)

    def _read(self, request: web.Request, request_id: str, endpoint: proto.Endpoint, raw: bytes) -> PDRequest:
        timing = Timing(read=now())
        parsed = proto.read_request(endpoint, proto.parse_body(raw), models=self._context.models())
        self._context.metrics.arrivals.inc()
        self._context.activity.arrived()
        return PDRequest(self._context, parsed, to_engine(request.headers.items(), request_id), timing, request_id)

    async def _answer(self, request: web.Request, pd_request: PDRequest, outcome: Outcome) -> web.StreamResponse:
        answer = await pd_request.answer()
        if isinstance(answer, EngineAnswer):
            outcome.answered(answer.status)
            self._latency.complete(pd_request, answer)
            complete = web.Response(status=answer.status, body=answer.body)
            return self._prepared(complete, pd_request, answer.headers)
        response = web.StreamResponse(status=200)
        self._prepared(response, pd_request, list(answer.response.headers.items()))
        await self._stream(request, response, pd_request, answer, outcome)
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        pd_request: PDRequest,
        stream: DecodeStream,
        outcome: Outcome,
    ) -> None:
        await response.prepare(request)
        self._latency.first(pd_request, stream)
        try:
            await response.write(pd_request.head)
            while chunk := await stream.read():
                await response.write(chunk)
        except EngineError as failure:
            await pd_request.examine(failure)
            pd_request.blame(failure)
            self._context.metrics.stream_errors.labels(failure.reason).inc()
            outcome.broke(failure.reason)
            # No [DONE] after it: a client that overlooks the error must not take this for a complete answer.
            await response.write(_error_event(failure))
            response.force_close()
        else:
            outcome.answered(200)
            with contextlib.suppress(EngineError):
                # It is counted and logged, no more: the client had the tokens before the engine said its count.
                pd_request.check_prompt(stream.pod, stream.reader.usage)
            self._latency.end(pd_request, stream)
        await response.write_eof()
        await stream.finish()

    def _prepared(self, response: Any, pd_request: PDRequest, headers: list[tuple[str, str]]) -> web.StreamResponse:
        for name, value in to_client(headers, pd_request.request_id):
            if name.lower() == "content-type":
                response.headers[name] = value
            else:
                response.headers.add(name, value)
        response.headers[HEADER_SERVER_TIMING] = server_timing(pd_request.timing, _first(pd_request))
        if self.draining:
            response.force_close()
        return response

    def _count(self, by: int) -> None:
        self.running += by
        if self.running:
            self._idle.clear()
        else:
            self._idle.set()

    def _record(
        self, request_id: str, endpoint: proto.Endpoint, pd_request: PDRequest | None, outcome: Outcome
    ) -> None:
        self._context.metrics.requests.labels(endpoint.label, outcome.name, str(outcome.code)).inc()
        extra: dict[str, Any] = {
            "request_id": request_id,
            "endpoint": endpoint.label,
            "outcome": outcome.name,
            "code": outcome.code,
        }
        if outcome.error:
            extra["error"] = outcome.error
        if pd_request:
            extra["prefill_pod"] = pd_request.prefill_pod.name if pd_request.prefill_pod else None
            extra["decode_pod"] = pd_request.decode_pod.name if pd_request.decode_pod else None
            extra["decode_only"] = pd_request.decode_only
            extra["seconds"] = round(now() - pd_request.timing.read, 4)
        log.info("request", extra=extra)


def _first(pd_request: PDRequest) -> float | None:
    return pd_request.stream.first_at if pd_request.stream else None


def _error_event(failure: EngineError) -> bytes:
    """The engine's own error where it sent one, else ours; after a blank line, should an event have been cut off."""
    if failure.answer is not None:
        return of_engine(failure.answer.status, failure.answer.body).event()
    message = f"The stream is incomplete: {failure.message}."
    return ApiError(502, message, code=failure.reason).event()


@contextlib.contextmanager
def _limit(request: web.Request, seconds: float):
    """Close a client's connection after `seconds`: one that reads nothing would otherwise hold its place for ever."""

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    timer = asyncio.get_running_loop().call_later(seconds, cut)
    try:
        yield
    finally:
        timer.cancel()
