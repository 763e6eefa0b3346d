"""TTFT, ITL and tokens of a request, and whether it met the targets.

What could not be measured of an answered request is counted, with the reason.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.exchange import Exchange
from phasewise_runtime.router.legs import EngineAnswer
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.outcome import Outcome
from phasewise_runtime.router.slo import Seen, Targets, result
from phasewise_runtime.router.stream import DecodeStream
from phasewise_runtime.router.timing import now


class Meter:
    def __init__(self, metrics: Metrics, targets: Targets) -> None:
        self._metrics = metrics
        self._targets = targets

    def first(self, exchange: Exchange, stream: DecodeStream) -> None:
        """The first token is there."""
        m, t, ttft = self._metrics, exchange.timing, _ttft(exchange)
        if ttft is None or stream.first_at is None:
            self._unmeasured("ttft", "no_output")
            return
        m.ttft.observe(ttft)
        m.ttft_phase.labels("queue").observe(t.admitted - t.read)
        if t.prefill is not None:
            m.ttft_phase.labels("prefill").observe(t.prefill)
        m.ttft_phase.labels("decode_first_token").observe(stream.first_at - t.decode_sent)

    def end(self, exchange: Exchange, stream: DecodeStream) -> None:
        """The stream is whole."""
        self._tokens(stream.reader.usage)
        itl = _itl(exchange)
        if isinstance(itl, str):
            self._unmeasured("itl", itl)
        else:
            self._metrics.itl.observe(itl)

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

    def judge(self, exchange: Exchange | None, outcome: Outcome) -> None:
        """The request has ended: count it by the targets, once."""
        seen = Seen() if exchange is None else _seen(exchange)
        if counts_as := result(outcome.name, seen, self._targets):
            self._metrics.slo_requests.labels(counts_as).inc()

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


def _ttft(exchange: Exchange) -> float | None:
    stream = exchange.stream
    return None if stream is None or stream.first_at is None else stream.first_at - exchange.timing.read


def _itl(exchange: Exchange) -> float | str:
    """Seconds, or why they are not known. Events are no tokens: one may hold several."""
    stream = exchange.stream
    usage = stream.reader.usage if stream else None
    tokens = usage.get("completion_tokens") if usage else None
    if exchange.alone in (proto.SEVERAL_CHOICES, proto.SEVERAL_PROMPTS):
        return exchange.alone
    if not isinstance(tokens, int):
        return "no_usage"
    if stream is None or stream.first_at is None or stream.last_at is None or tokens < 2:
        return "one_token"
    return (stream.last_at - stream.first_at) / (tokens - 1)


def _seen(exchange: Exchange) -> Seen:
    if exchange.waiter.phase is not None:
        return Seen(waited=now() - exchange.timing.read)
    itl = _itl(exchange)
    return Seen(ttft=_ttft(exchange), itl=None if isinstance(itl, str) else itl)
