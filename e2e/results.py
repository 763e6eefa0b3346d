"""What came of a load: the latency that clients saw, when a target was missed, which answers are wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.alone import ask_alone, equal
from e2e.client import Answer
from e2e.load import Outcome, Request
from e2e.shapes import Shape, Shaped
from phasewise_runtime import contract

MISSES, MISSES_SECONDS = 3, 10.0


@dataclass(frozen=True)
class Latency:
    """What clients saw, in seconds; nan where there was nothing."""

    requests: int
    ttft_p50: float
    ttft_p95: float
    itl: float

    def __str__(self) -> str:
        return f"TTFT p50 {self.ttft_p50:.2f} s, p95 {self.ttft_p95:.2f} s; ITL {1000 * self.itl:.0f} ms"


def latency(outcomes: Sequence[Outcome]) -> Latency:
    ttfts = sorted(o.answer.ttft for o in outcomes if o.answer.ttft is not None)
    gaps = [o.answer.itl for o in outcomes if o.answer.itl is not None]
    return Latency(
        len(outcomes), quantile(ttfts, 0.5), quantile(ttfts, 0.95), statistics.mean(gaps) if gaps else math.nan
    )


def breach(running: Shaped, ttft: float, itl: float) -> float:
    """When, on the monotonic clock, the load's pool began to miss its target; inf where it never did. In seconds.

    That is the last of the first MISSES misses within MISSES_SECONDS: a slow request by itself is no breach. Prefill
    answers for TTFT; decode for ITL, known once a stream ended, and for TTFT where streams wait for admission.
    """
    missed = [o.began + ttft for o in running.sent if (math.inf if o.answer.ttft is None else o.answer.ttft) > ttft]
    if running.shape.pool == contract.DECODE:
        missed += [o.ended for o in running.sent if o.answer.itl is not None and o.answer.itl > itl]
    missed.sort()
    rows = zip(missed, missed[MISSES - 1 :], strict=False)
    return next((last for first, last in rows if last - first < MISSES_SECONDS), math.inf)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, the smallest that at least such a share does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def right_answers(engine_alone: str, model: str, shape: Shape) -> dict[str, Outcome]:
    """What the engine alone answers to each prompt of a shape.

    One by one: a prompt computed beside a stream slows it, and would teach the operator a slow decode pod.
    """
    return {prompt_of(o.request): o for o in ask_alone(engine_alone, shape.requests(model), 1)}


def prompt_of(request: Request) -> str:
    return str(request.body.get("prompt") or request.body["messages"][0]["content"])


def wrong_answers(outcomes: Sequence[Outcome], right: dict[str, Outcome], shape: Shape) -> list[str]:
    """Answers that lack a token, have one twice, or another one than the engine alone gives."""

    def whole(answer: Answer, alone: Outcome) -> bool:
        return answer.usage.get("completion_tokens") == shape.output and equal(answer.text, alone)

    return [
        f"{o.request.path}: {o.answer.usage.get('completion_tokens')} tokens {o.answer.text!r}"
        for o in outcomes
        if not whole(o.answer, right[prompt_of(o.request)])
    ]
