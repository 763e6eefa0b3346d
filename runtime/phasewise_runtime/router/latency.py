"""Records TTFT, ITL and tokens of a request, and whether it met the targets.

An answered request whose TTFT or ITL could not be measured is counted, with the reason.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.engine_client import EngineAnswer
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.outcome import Outcome
from phasewise_runtime.router.pd_request import PDRequest
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.slo import Seen, Targets, result
from phasewise_runtime.router.stream import DecodeStream
from phasewise_runtime.router.timing import now


class LatencyRecorder:
    def __init__(self, metrics: Metrics, targets: Targets, pod_registry: PodRegistry) -> None:
        self._metrics = metrics
        self._pod_registry = pod_registry
        self._targets = targets

    def first(self, pd_request: PDRequest, stream: DecodeStream) -> None:
        """The first token came."""
        m, t, ttft = self._metrics, pd_request.timing, _ttft(pd_request)
        if ttft is None or stream.first_at is None:
            self._unmeasured("ttft", "no_output")
            return
        m.ttft.observe(ttft)
        m.ttft_phase.labels("queue").observe(t.admitted - t.read)
        if t.prefill is not None:
            m.ttft_phase.labels("prefill").observe(t.prefill)
        m.ttft_phase.labels("decode_first_token").observe(stream.first_at - t.decode_sent)

    def end(self, pd_request: PDRequest, stream: DecodeStream) -> None:
        """The stream ended completely."""
        self._tokens(stream.reader.usage)
        itl = _itl(pd_request)
        if isinstance(itl, str):
            self._unmeasured("itl", itl)
        else:
            self._metrics.itl.observe(itl)

    def complete(self, pd_request: PDRequest, answer: EngineAnswer) -> None:
        """A complete answer: assembled from a stream, or passed through."""
        if answer.status != 200:
            return
        stream = pd_request.stream
        if stream is not None and stream.reader.done:
            self.first(pd_request, stream)
            self.end(pd_request, stream)
            return
        self._unmeasured("ttft", proto.SHAPE)
        self._unmeasured("itl", proto.SHAPE)
        with contextlib.suppress(ValueError):
            self._tokens(proto.read_answer(answer.body).body.get("usage"))

    def judge(self, pd_request: PDRequest | None, outcome: Outcome) -> None:
        """Count a request that has ended by its SLO result, once; also for the pods that it came to last."""
        seen = Seen() if pd_request is None else _seen(pd_request)
        counts_as = result(outcome.name, seen, self._targets)
        if counts_as is None:
            return
        self._metrics.slo_requests.labels(counts_as).inc()
        pods = (pd_request.prefill_pod, pd_request.decode_pod) if pd_request else ()
        for pod in filter(None, pods):
            self._pod_registry.report_result(pod, counts_as)

    def _tokens(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        counts = cast("dict[str, Any]", usage)
        details = cast("dict[str, Any]", counts.get("prompt_tokens_details") or {})
        self._metrics.input_tokens.inc(counts.get("prompt_tokens") or 0)
        self._metrics.output_tokens.inc(counts.get("completion_tokens") or 0)
        self._metrics.cached_tokens.inc(details.get("cached_tokens") or 0)

    def _unmeasured(self, metric: str, reason: str) -> None:
        self._metrics.unmeasured.labels(metric, reason).inc()


def _ttft(pd_request: PDRequest) -> float | None:
    stream = pd_request.stream
    return None if stream is None or stream.first_at is None else stream.first_at - pd_request.timing.read


def _itl(pd_request: PDRequest) -> float | str:
    """Seconds, or why they are unknown. Counted in tokens, not in events: an event may hold several tokens."""
    stream = pd_request.stream
    usage = stream.reader.usage if stream else None
    tokens = usage.get("completion_tokens") if usage else None
    if pd_request.decode_only in (proto.SEVERAL_CHOICES, proto.SEVERAL_PROMPTS):
        return pd_request.decode_only
    if not isinstance(tokens, int):
        return "no_usage"
    if stream is None or stream.first_at is None or stream.last_at is None or tokens < 2:
        return "one_token"
    return (stream.last_at - stream.first_at) / (tokens - 1)


def _seen(pd_request: PDRequest) -> Seen:
    if pd_request.pending.phase is not None:
        return Seen(waited=now() - pd_request.timing.read)
    itl = _itl(pd_request)
    return Seen(ttft=_ttft(pd_request), itl=None if isinstance(itl, str) else itl)
