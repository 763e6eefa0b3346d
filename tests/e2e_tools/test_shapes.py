"""When a load's pool began to miss its target, which the time to new replicas is counted from; when a load is large."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
from e2e import shapes
from e2e.client import Answer
from e2e.load import Outcome, Request
from e2e.shapes import GenerationHeavy, PromptHeavy, Shaped, breach

TTFT, ITL = 3.0, 0.06


def answered(began: float, ttft: float | None, itl: float = 0.01) -> Outcome:
    answer = Answer(ttft=ttft, gaps=[itl] * 10 if ttft else [], usage={"completion_tokens": 11})
    return Outcome(Request("/", {}), answer, began, began + (ttft or 0.0) + 10 * itl)


def prompts(*sent: Outcome) -> Shaped:
    return PromptHeavy("", "", sent=list(sent))


def streams(*sent: Outcome) -> Shaped:
    return GenerationHeavy("", "", sent=list(sent))


def test_the_third_miss_within_seconds_is_the_breach() -> None:
    assert breach(prompts(*(answered(at, ttft=5.0) for at in (0, 1, 2, 3))), TTFT, ITL) == 2 + TTFT


def test_a_request_without_a_token_has_missed_once_the_target_is_over() -> None:
    assert breach(prompts(*(answered(at, ttft=None) for at in (0, 1, 2))), TTFT, ITL) == 2 + TTFT


def test_single_slow_requests_are_no_breach() -> None:
    assert breach(prompts(*(answered(at, ttft=5.0) for at in (0, 20, 40, 60))), TTFT, ITL) == math.inf
    assert breach(prompts(answered(0, ttft=1.0)), TTFT, ITL) == math.inf


@pytest.mark.parametrize("load", [streams, prompts])
def test_prefill_does_not_answer_for_itl(load: Callable[..., Shaped]) -> None:
    slow = [answered(at, ttft=1.0, itl=0.1) for at in (0, 1, 2)]
    assert breach(load(*slow), TTFT, ITL) == (slow[2].ended if load is streams else math.inf)


@pytest.mark.parametrize(
    ("gaps", "streams"),
    [
        ([0.0] * 20, 15),
        ([0.0, 0.0, 0.07, 0.0, 0.0], 12),
        ([0.07, 0.0], 10),
    ],
    ids=["never at its target: half as many again", "at its target once", "there already"],
)
def test_streams_are_added_until_itl_was_once_at_its_target(
    gaps: list[float], streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ten streams the load is told that it is enough. Two pods make ITL good again: that asks for no more."""
    load = GenerationHeavy("", "", target=ITL)
    left = iter([0.0] * 10 + gaps)

    def gap_now(_: object) -> float:
        if load.streams == 9:
            load.enough.set()
        if (gap := next(left, None)) is None:
            load.stop.set()
            return math.inf
        return gap

    monkeypatch.setattr(shapes, "STREAM_EVERY", 0.001)
    monkeypatch.setattr(shapes, "gap_now", gap_now)
    monkeypatch.setattr(GenerationHeavy, "_stream", lambda _: None)
    over = threading.Timer(10, load.stop.set)
    over.start()
    load.run()
    over.cancel()
    assert load.streams == streams
