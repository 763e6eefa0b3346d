"""One request through its legs: choose, prefill, decode, and again elsewhere while the client has seen nothing.

KV parameters are used at most once: after any sign that a decode engine saw them the prompt is prefilled again. Only
where the connection to the decode pod could not be made do they go to another decode pod.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from phasewise_runtime.contract import DECODE, PREFILL
from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.admission import no_engine
from phasewise_runtime.router.assembly import NotAssemblableError, assemble
from phasewise_runtime.router.fleet import Leg
from phasewise_runtime.router.headers import Headers
from phasewise_runtime.router.legs import EngineAnswer, LegError, read_whole
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.policy import PREFILL_FAILED, Choice, choose, choose_decode
from phasewise_runtime.router.rooms import Rooms
from phasewise_runtime.router.sse import StreamReader
from phasewise_runtime.router.stream import DecodeStream
from phasewise_runtime.router.timing import Timing, now
from phasewise_runtime.router.tries import NOT_ASSEMBLABLE, Tries
from phasewise_runtime.router.waiting import IN_DECODE, IN_PREFILL, IN_QUEUE

log = logging.getLogger(__name__)

PREFILL_REFUSED = "prefill_refused"
KV_PARAMS_MISSING = "kv_params_missing"


class Exchange:
    """Use as a context manager: leaving it ends whatever leg is still in flight."""

    def __init__(self, rooms: Rooms, request: proto.Request, headers: Headers, timing: Timing, request_id: str) -> None:
        self._rooms = rooms
        self._request = request
        self._headers = headers
        self.timing = timing
        self.waiter = rooms.waiting.enter(timing.read)
        """Whoever makes an exchange has it leave in the end."""
        self.request_id = request_id
        self.prefill_pod: Pod | None = None
        self.decode_pod: Pod | None = None
        self.alone: str | None = None
        """Why the answer took no prefill leg."""
        self.stream: DecodeStream | None = None
        self.head = b""
        """The first bytes of the stream."""
        self._leg: Leg | None = None
        """The decode leg of this try."""
        self._tries = Tries()
        self._attempt = contextlib.ExitStack()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._attempt.close()

    async def answer(self) -> EngineAnswer | DecodeStream:
        """A whole answer, or a stream that has begun; ApiError where there is none to be had."""
        while True:
            self.waiter.wait_in(IN_QUEUE)
            self.stream = self._leg = None
            choice = await self._choose()
            try:
                self._place(choice.decode)
                kv = await self._prefill(choice)
                answer = await self._decode(choice, kv)
            except LegError as failure:
                self._spoil(failure)
                self._attempt.close()
                final = self._note(failure)
                if final is not None:
                    return final
            else:
                if self.alone:
                    self._rooms.metrics.decode_only.labels(self.alone).inc()
                return answer

    def blame(self, failure: LegError) -> None:
        """Count a failure against its pod: once a request, for it may be the request that fails."""
        self._spoil(failure)
        if failure.blame:
            if failure.hard or not self._tries.by_pod[failure.pod.uid]:
                self._rooms.fleet.report_failure(failure.pod, failure.reason, hard=failure.hard)
            self._tries.by_pod[failure.pod.uid] += 1

    # --- choosing --------------------------------------------------------------------------------------------
    async def _choose(self) -> Choice:
        fleet, hold = self._rooms.fleet, self._rooms.settings.hold_seconds
        until = now() + hold
        alone = self._request.alone or (PREFILL_FAILED if self._tries.enough(PREFILL) else None)
        while True:
            choice = choose(
                fleet.candidates(PREFILL, self._tries.by_pod),
                fleet.candidates(DECODE, self._tries.by_pod),
                alone=alone,
                spin=next(self._rooms.spin),
            )
            if choice is not None:
                return choice
            if not await fleet.changed(until - now()):
                raise no_engine(hold)

    def _spoil(self, failure: LegError) -> None:
        """A leg that fails by its pod's fault has not ended well, however it began."""
        if failure.blame and self._leg is not None:
            self._leg.well = False

    def _place(self, pod: Pod) -> None:
        """The try is on `pod` now: what it held elsewhere is given back."""
        self._attempt.close()
        self._attempt.enter_context(self._rooms.fleet.reserve(pod))

    def _left(self) -> float:
        """Seconds the request may still take."""
        return max(1.0, self._rooms.settings.max_generation_seconds - (now() - self.timing.admitted))

    def _note(self, failure: LegError) -> EngineAnswer | None:
        """Remember a failure; returns or raises the last word where there is to be no other try."""
        self._tries.note(failure)
        self.blame(failure)
        leg = failure.pod.role
        extra = {
            "request_id": self.request_id,
            "pod": failure.pod.name,
            "leg": leg,
            "reason": failure.reason,
            "detail": f"{failure.message} ({failure.__cause__})" if failure.__cause__ else failure.message,
        }
        log.warning("leg failed", extra=extra)
        if failure.suspect_prefill and self.prefill_pod is not None:
            self._tries.by_pod[self.prefill_pod.uid] += 1
            self._rooms.fleet.report_failure(self.prefill_pod, "kv_not_loaded", hard=False)
        if self._tries.over(failure):
            return self._tries.last_word(failure)
        self._rooms.metrics.retries.labels(leg, failure.reason).inc()
        return None

    # --- prefill ---------------------------------------------------------------------------------------------
    async def _prefill(self, choice: Choice) -> Mapping[str, Any] | None:
        self.prefill_pod, self.timing.prefill, self.alone = choice.prefill, None, None
        pod = choice.prefill
        if pod is None:
            self.alone = choice.reason
            return None
        began = now()
        self.waiter.wait_in(IN_PREFILL)
        body = proto.encode(proto.prefill_body(self._request))
        with self._rooms.fleet.reserve(pod), self._rooms.fleet.leg(pod) as leg:
            answer = await self._rooms.legs.prefill(
                pod, self._request.endpoint.value, self._headers, body, deadline=self._left(), gone=leg.gone
            )
            self.timing.prefill = now() - began
            kv = self._kv_params(pod, answer)
            leg.well = answer.status == 200
        return kv

    def _kv_params(self, pod: Pod, answer: EngineAnswer) -> Mapping[str, Any] | None:
        if answer.status != 200:
            # The engine refuses the request: let decode say so of the request as the client wrote it.
            self._rooms.fleet.report_success(pod)
            return self._go_alone(PREFILL_REFUSED)
        read = _read(pod, answer, "the prefill answer")
        if read.kv_params is None:
            self._rooms.metrics.kv_params_missing.labels(pod.name).inc()
            self._rooms.metrics.kv_transfer_ok.labels(pod.name).set(0)
            log.warning("prefill answered without KV parameters: check its KV connector", extra={"pod": pod.name})
            return self._go_alone(KV_PARAMS_MISSING)
        self._rooms.frames.learn(pod, self._request, read.body)
        return read.kv_params

    def _go_alone(self, reason: str) -> None:
        self.prefill_pod, self.timing.prefill, self.alone = None, None, reason

    # --- decode ----------------------------------------------------------------------------------------------
    async def _decode(self, choice: Choice, kv: Mapping[str, Any] | None) -> EngineAnswer | DecodeStream:
        pod = choice.decode
        if kv is not None and not self._rooms.fleet.keeps(pod):
            pod = self._other_decode(choice) or pod
            self._place(pod)
        while True:
            try:
                return await self._decode_on(pod, kv)
            except LegError as failure:
                if failure.sent or kv is None:
                    raise
                self.blame(failure)
                other = self._other_decode(choice)
                if other is None:
                    raise
                self._rooms.metrics.retries.labels(DECODE, failure.reason).inc()
                pod = other
                self._place(pod)

    def _other_decode(self, choice: Choice) -> Pod | None:
        candidates = self._rooms.fleet.candidates(DECODE, self._tries.by_pod)
        return choose_decode(candidates, choice.decode.fingerprint, spin=next(self._rooms.spin))

    async def _decode_on(self, pod: Pod, kv: Mapping[str, Any] | None) -> EngineAnswer | DecodeStream:
        rooms, request = self._rooms, self._request
        self.decode_pod = pod
        frame = rooms.frames.get(pod, request)
        streamed = request.stream or frame is not None
        body = proto.encode(proto.decode_body(request, kv, assemble=frame is not None))
        if streamed:
            self.waiter.wait_in(IN_DECODE)
        else:
            self.waiter.leave()
        self.timing.decode_sent = now()
        self._leg = self._attempt.enter_context(rooms.fleet.leg(pod))
        response = await rooms.legs.decode(
            pod,
            request.endpoint.value,
            self._headers,
            body,
            deadline=self._left(),
            streamed=streamed,
            gone=self._leg.gone,
        )
        self._attempt.callback(response.close)
        if response.status != 200 or response.content_type != "text/event-stream":
            return self._whole(pod, await read_whole(response, pod))
        stream = self.stream = DecodeStream(
            response,
            pod,
            StreamReader(strip_usage=request.stream and request.ask_usage, keep=frame is not None),
            first_token_seconds=rooms.settings.first_token_seconds,
            gap_seconds=rooms.settings.gap_seconds,
            on_gap=rooms.metrics.gap.observe,
        )
        self._attempt.callback(stream.close)
        self.head = await stream.until_answered()
        self.waiter.leave()
        self._succeeded(pod)
        return stream if frame is None else await self._assembled(pod, stream, frame)

    def _succeeded(self, pod: Pod) -> None:
        self._rooms.fleet.report_success(pod)
        if self._leg is not None:
            self._leg.well = True
        if self.prefill_pod is not None:
            # Only now: a prefill whose KV cannot be loaded has not served.
            self._rooms.fleet.report_success(self.prefill_pod)
            self._rooms.metrics.kv_transfer_ok.labels(self.prefill_pod.name).set(1)

    def _whole(self, pod: Pod, answer: EngineAnswer) -> EngineAnswer:
        """An answer that is passed through."""
        if answer.status == 200 and not self._request.stream:
            read = _read(pod, answer, "the answer")
            self._rooms.frames.learn(pod, self._request, read.body)
            if read.kv_params is not None:
                clean = {**read.body, proto.KV_PARAMS: None}
                answer = EngineAnswer(answer.status, answer.headers, json.dumps(clean, separators=(",", ":")).encode())
        if answer.status == 200:
            self._succeeded(pod)
        else:
            # The engine refuses the request: it works, but nothing is known of the KV it was given.
            self._rooms.fleet.report_success(pod)
        return answer

    async def _assembled(self, pod: Pod, stream: DecodeStream, frame: dict[str, Any]) -> EngineAnswer:
        while await stream.read():
            pass
        await stream.finish()
        try:
            body = assemble(frame, stream.reader.events)
        except NotAssemblableError as e:
            self._rooms.frames.give_up(pod, self._request)
            raise LegError(pod, NOT_ASSEMBLABLE, f"sent again without streaming: {e}", blame=False) from e
        not_kept = ("content-type", "cache-control")
        headers = [(k, v) for k, v in stream.response.headers.items() if k.lower() not in not_kept]
        raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        return EngineAnswer(200, [("Content-Type", "application/json"), *headers], raw)


def _read(pod: Pod, answer: EngineAnswer, what: str) -> proto.Answer:
    """A whole 200 answer; LegError where it is none, or the engine was told to stop."""
    try:
        read = proto.read_answer(answer.body)
    except ValueError as e:
        raise LegError(pod, "malformed", f"{what} cannot be read: {e}") from e
    if read.aborted:
        raise LegError(pod, "abort", "the engine is shutting down and ended the request", hard=True)
    return read
