"""TTFT, ITL and tokens of an answered request. What could not be measured is counted, with the reason."""

from __future__ import annotations

import contextlib
from typing import Any, cast

from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.exchange import Exchange
from phasewise_runtime.router.legs import EngineAnswer
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.stream import DecodeStream


class Meter:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def first(self, exchange: Exchange, stream: DecodeStream) -> None:
        """The first token is there."""
        m, t = self._metrics, exchange.timing
        if stream.first_at is None:
            self._unmeasured("ttft", "no_output")
            return
        m.ttft.observe(stream.first_at - t.read)
        m.ttft_phase.labels("queue").observe(t.admitted - t.read)
        if t.prefill is not None:
            m.ttft_phase.labels("prefill").observe(t.prefill)
        m.ttft_phase.labels("decode_first_token").observe(stream.first_at - t.decode_sent)

    def end(self, exchange: Exchange, stream: DecodeStream) -> None:
        """The stream is whole."""
        usage = stream.reader.usage
        self._tokens(usage)
        tokens = usage.get("completion_tokens") if usage else None
        if exchange.alone in (proto.SEVERAL_CHOICES, proto.SEVERAL_PROMPTS):
            self._unmeasured("itl", exchange.alone)
        elif not isinstance(tokens, int):
            self._unmeasured("itl", "no_usage")
        elif stream.first_at is None or stream.last_at is None or tokens < 2:
            self._unmeasured("itl", "one_token")
        else:
            self._metrics.itl.observe((stream.last_at - stream.first_at) / (tokens - 1))

    def whole(self, exchange: Exchange, answer: EngineAnswer) -> None:
        """A whole answer: assembled from a stream, or passed through."""
        if answer.status != 200:
            return
        stream = exchange.stream
        if stream is not None and stream.reader.done:
            self.first(exchange, stream)
            self.end(exchange, stream)
            return
        self._unmeasured("ttft", proto.SHAPE)
        self._unmeasured("itl", proto.SHAPE)
        with contextlib.suppress(ValueError):
            self._tokens(proto.read_answer(answer.body).body.get("usage"))

    def _tokens(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        counts = cast("dict[str, Any]", usage)
        details = cast("dict[str, Any]", counts.get("prompt_tokens_details") or {})
        self._metrics.input_tokens.inc(counts.get("prompt_tokens") or 0)
        self._metrics.output_tokens.inc(counts.get("completion_tokens") or 0)
        self._metrics.cached_tokens.inc(details.get("cached_tokens") or 0)

    def _unmeasured(self, what: str, reason: str) -> None:
        self._metrics.unmeasured.labels(what, reason).inc()
