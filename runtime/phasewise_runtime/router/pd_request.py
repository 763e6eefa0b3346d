"""Sends one request to its pods: choose, prefill, decode, and retry elsewhere while the client has seen nothing.

KV parameters are used at most once: after any sign that a decode engine saw them the prompt is prefilled again. Only
where the connection to the decode pod could not be made do they go to another decode pod.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from phasewise_runtime.contract import DECODE
from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.assembly import NotAssemblableError
from phasewise_runtime.router.context import RouterContext
from phasewise_runtime.router.engine_client import EngineAnswer, EngineError, parse_answer, read_answer, reason_of
from phasewise_runtime.router.headers import Headers
from phasewise_runtime.router.kv_paths import KV_PARAMS_MISSING, PROMPT_MISMATCH
from phasewise_runtime.router.pending import IN_DECODE, IN_PREFILL, IN_QUEUE
from phasewise_runtime.router.placement import choose_pods, other_decode
from phasewise_runtime.router.pod_registry import InflightRequest
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.policy import Choice
from phasewise_runtime.router.retry import NOT_ASSEMBLABLE, RetryState, in_our_words
from phasewise_runtime.router.sse import StreamReader
from phasewise_runtime.router.stream import DecodeStream
from phasewise_runtime.router.timing import Timing, now

log = logging.getLogger(__name__)

PREFILL_REFUSED = "prefill_refused"
MIN_SECONDS_LEFT = 1.0
"""Least deadline of an attempt: aiohttp takes 0 for no limit."""


class PDRequest:
    """Use as a context manager: leaving it ends the requests to engines that are still in flight."""

    def __init__(
        self, context: RouterContext, request: proto.Request, headers: Headers, timing: Timing, request_id: str
    ) -> None:
        self._context = context
        self._request = request
        self._headers = headers
        self.timing = timing
        self.pending = context.pending.add(timing.read)
        """CompletionHandler.serve() calls its leave()."""
        self.request_id = request_id
        self.prefill_pod: Pod | None = None
        self.decode_pod: Pod | None = None
        self.decode_only: str | None = None
        """Why the answer came from the decode pod only; None where a prefill pod did the prefill."""
        self.stream: DecodeStream | None = None
        self.head = b""
        """The bytes of the stream up to its first token."""
        self._inflight: InflightRequest | None = None
        """The decode request of this attempt."""
        self._prefilled_tokens: int | None = None
        """Tokens of the prompt, as the prefill engine counted them."""
        self._retry = RetryState()
        self._attempt = contextlib.ExitStack()

    def __enter__(self) -> PDRequest:
        return self

    def __exit__(self, *_: object) -> None:
        self._attempt.close()

    async def answer(self) -> EngineAnswer | DecodeStream:
        """A complete answer, or a stream that has begun; ApiError where no engine gave either."""
        while True:
            self.pending.enter(IN_QUEUE)
            self.stream = self._inflight = None
            decode_only = self._request.decode_only or self._retry.decode_only()
            choice = await choose_pods(self._context, self._retry, decode_only)
            try:
                self._place(choice.decode)
                kv = await self._prefill(choice)
                answer = await self._decode(choice, kv)
            except EngineError as raised:
                failure = reason_of(raised, self._inflight and self._inflight.cut)
                self._mark_failed(failure)
                self._attempt.close()
                await self.examine(failure)
                if (final := self._record(failure)) is not None:
                    return final
            else:
                if self.decode_only:
                    self._context.metrics.decode_only.labels(self.decode_only).inc()
                return answer

    async def examine(self, failure: EngineError) -> None:
        """Find out whether the engine process ended by itself; the failure then says so."""
        await self._context.engine_client.diagnose(failure, self._context.pod_registry.is_leaving)

    def blame(self, failure: EngineError) -> None:
        """Count a failure against its pod: once a request, since the request itself may be the cause."""
        self._mark_failed(failure)
        if failure.blame:
            if failure.hard or not self._retry.by_pod[failure.pod.uid]:
                self._context.pod_registry.report_failure(failure.pod, failure.reason, hard=failure.hard)
            self._retry.by_pod[failure.pod.uid] += 1

    def _mark_failed(self, failure: EngineError) -> None:
        """A decode request that its pod broke has not succeeded, even after a first token."""
        if failure.blame and self._inflight is not None:
            self._inflight.succeeded = False

    def _place(self, pod: Pod) -> None:
        """Place the attempt on `pod`, and give up its place on the pod before."""
        self._attempt.close()
        self._attempt.enter_context(self._context.pod_registry.reserve(pod))

    def _left(self) -> float:
        """Seconds the request may still take."""
        return max(MIN_SECONDS_LEFT, self._context.settings.max_generation_seconds - (now() - self.timing.admitted))

    def _record(self, failure: EngineError) -> EngineAnswer | None:
        """Count a failure; returns the engine's error, or raises ours, where no retry follows."""
        self._retry.record(failure)
        self.blame(failure)
        role = failure.pod.role
        log.warning("engine request failed", extra={"request_id": self.request_id, **failure.log_fields()})
        if failure.suspect_prefill and self.prefill_pod is not None:
            self._retry.by_pod[self.prefill_pod.uid] += 1
            self._context.pod_registry.kv.report_load_failure(self.prefill_pod, failure.pod, now())
        if pods := self._retry.engines_died:
            self._context.metrics.engine_died_requests.inc()
            extra = {"request_id": self.request_id, "pods": pods}
            log.error("engines died on a request, which may be the cause: it is not tried again", extra=extra)
        if self._retry.is_final(failure):
            return self._retry.final_answer(failure)
        self._context.metrics.retries.labels(role, failure.reason).inc()
        return None

    # --- prefill ---------------------------------------------------------------------------------------------
    async def _prefill(self, choice: Choice) -> Mapping[str, Any] | None:
        self.prefill_pod, self.timing.prefill, self.decode_only = choice.prefill, None, None
        self._prefilled_tokens = None
        pod = choice.prefill
        if pod is None:
            self.decode_only = choice.reason
            return None
        began = now()
        self.pending.enter(IN_PREFILL)
        body = proto.encode(proto.prefill_body(self._request, pod.model))
        pod_registry = self._context.pod_registry
        with (
            pod_registry.reserve(pod),
            pod_registry.inflight(pod) as request,
            pod_registry.waiting_for_kv(pod, choice.decode, request),
        ):
            answer = await self._context.engine_client.prefill(
                pod, self._request.endpoint.value, self._headers, body, deadline=self._left(), cut=request.cut
            )
            self.timing.prefill = now() - began
            kv = self._kv_params(pod, answer)
            request.succeeded = answer.status == 200
        return kv

    def _kv_params(self, pod: Pod, answer: EngineAnswer) -> Mapping[str, Any] | None:
        if answer.status != 200:
            # The engine refuses the request. The decode pod gets it as the client wrote it; its error is the answer.
            self._context.pod_registry.report_success(pod)
            return self._skip_prefill(PREFILL_REFUSED)
        read = parse_answer(pod, answer, "the prefill answer")
        if read.kv_params is None:
            self._context.metrics.kv_params_missing.labels(pod.name).inc()
            self._context.pod_registry.kv.report_prefill_failure(pod, KV_PARAMS_MISSING, now())
            log.warning("prefill answered without KV parameters: check its KV connector", extra={"pod": pod.name})
            return self._skip_prefill(KV_PARAMS_MISSING)
        self._context.frames.learn(pod, self._request, read.body)
        self._prefilled_tokens = proto.prompt_tokens(read.body.get("usage"))
        return read.kv_params

    def _skip_prefill(self, reason: str) -> None:
        self.prefill_pod, self.timing.prefill, self.decode_only = None, None, reason

    # --- decode ----------------------------------------------------------------------------------------------
    async def _decode(self, choice: Choice, kv: Mapping[str, Any] | None) -> EngineAnswer | DecodeStream:
        pod = choice.decode
        if kv is not None and not self._context.pod_registry.accepts_placed(pod):
            pod = self._other_decode() or pod
            self._place(pod)
        while True:
            try:
                return await self._decode_on(pod, kv)
            except EngineError as failure:
                if failure.sent or kv is None:
                    raise
                self.blame(failure)
                other = self._other_decode()
                if other is None:
                    raise
                self._context.metrics.retries.labels(DECODE, failure.reason).inc()
                pod = other
                self._place(pod)

    def _other_decode(self) -> Pod | None:
        return other_decode(self._context, self._retry, self.prefill_pod) if self.prefill_pod is not None else None

    async def _decode_on(self, pod: Pod, kv: Mapping[str, Any] | None) -> EngineAnswer | DecodeStream:
        context, request = self._context, self._request
        self.decode_pod = pod
        frame = context.frames.get(pod, request)
        streamed = request.stream or frame is not None
        body = proto.encode(proto.decode_body(request, kv, pod.model, assemble=frame is not None))
        if streamed:
            self.pending.enter(IN_DECODE)
        else:
            self.pending.leave()
        self.timing.decode_sent = now()
        self._inflight = self._attempt.enter_context(context.pod_registry.inflight(pod))
        waiting = self._attempt.enter_context(contextlib.ExitStack())
        if self.prefill_pod is not None:
            waiting.enter_context(context.pod_registry.waiting_for_kv(self.prefill_pod, pod, self._inflight))
        response = await context.engine_client.decode(
            pod,
            request.endpoint.value,
            self._headers,
            body,
            deadline=self._left(),
            streamed=streamed,
            cut=self._inflight.cut,
        )
        self._attempt.callback(response.close)
        if response.status != 200 or response.content_type != "text/event-stream":
            return self._passed_through(pod, await read_answer(response, pod))
        stream = self.stream = DecodeStream(
            response,
            pod,
            StreamReader(strip_usage=request.stream and request.ask_usage, keep=frame is not None),
            first_token_seconds=context.settings.first_token_seconds,
            gap_seconds=context.settings.gap_seconds,
            on_gap=context.metrics.gap.observe,
        )
        self._attempt.callback(stream.close)
        self.head = await stream.until_answered()
        waiting.close()
        self.check_prompt(pod, stream.reader.usage)
        self.pending.leave()
        self._succeeded(pod)
        return stream if frame is None else await self._assembled(pod, stream, frame)

    def _succeeded(self, pod: Pod) -> None:
        self._context.pod_registry.report_success(pod)
        if self._inflight is not None:
            self._inflight.succeeded = True
        if self.prefill_pod is not None:
            # Only now: the decode pod could load the KV.
            self._context.pod_registry.report_success(self.prefill_pod)
            self._context.pod_registry.kv.report_success(self.prefill_pod, pod, now())

    def _passed_through(self, pod: Pod, answer: EngineAnswer) -> EngineAnswer:
        """A complete answer of the engine; only KV parameters are taken out of it."""
        if answer.status == 200 and not self._request.stream:
            read = parse_answer(pod, answer, "the answer")
            self.check_prompt(pod, read.body.get("usage"))
            self._context.frames.learn(pod, self._request, read.body)
            if read.kv_params is not None:
                clean = {**read.body, proto.KV_PARAMS: None}
                answer = EngineAnswer(answer.status, answer.headers, json.dumps(clean, separators=(",", ":")).encode())
        if answer.status == 200:
            self._succeeded(pod)
        else:
            # The engine works but refuses the request, so nothing is known of the KV transfer.
            self._context.pod_registry.report_success(pod)
            answer = in_our_words(answer)
        return answer

    def check_prompt(self, pod: Pod, usage: Any) -> None:
        """EngineError where decode counted another prompt than prefill: its answer came from KV of another prompt."""
        decoded = proto.prompt_tokens(usage)
        if self.prefill_pod is None or None in (decoded, self._prefilled_tokens) or decoded == self._prefilled_tokens:
            return
        self._context.metrics.prompt_mismatches.labels(self.prefill_pod.fingerprint).inc()
        message = "prefill and decode engine counted different prompt tokens"
        pods = {"prefill_pod": self.prefill_pod.name, "decode_pod": pod.name}
        self._context.pod_registry.kv.report_failure(self.prefill_pod, pod, PROMPT_MISMATCH, now())
        counted = {"prefill_tokens": self._prefilled_tokens, "decode_tokens": decoded}
        log.error(message, extra={"request_id": self.request_id, **pods, **counted})
        raise EngineError(pod, PROMPT_MISMATCH, message, blame=False)

    async def _assembled(self, pod: Pod, stream: DecodeStream, frame: dict[str, Any]) -> EngineAnswer:
        try:
            answer = await stream.assembled(frame)
        except NotAssemblableError as e:
            self._context.frames.give_up(pod, self._request)
            raise EngineError(pod, NOT_ASSEMBLABLE, f"sent again without streaming: {e}", blame=False) from e
        self.check_prompt(pod, stream.reader.usage)
        return answer
