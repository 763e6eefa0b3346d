"""When a load's pool began to miss its target, which the time to new replicas is counted from; when a load is large."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from e2e import shapes
from e2e.client import Answer
from e2e.load import Outcome, Request
from e2e.results import breach
from e2e.shapes import TOKENS_JUDGED, GenerationHeavy, PromptHeavy, Shaped, gap_now

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


@dataclass
class Loop:
    """A generation-heavy load whose turns are given: ITL in targets at each, and whether the pool has grown."""

    load: GenerationHeavy
    waited: float = 0.0

    def turn(self, *gaps: float) -> None:
        left = iter(gaps)
        self.gap = 0.0

        def wait(_: float) -> bool:
            gap = next(left, None)
            self.gap = ITL * (gap or 0.0)
            return gap is None

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.load.stop, "wait", wait)
            patch.setattr(shapes, "gap_now", lambda _: self.gap)
            patch.setattr(shapes, "waited_now", lambda _: self.waited)
            patch.setattr(GenerationHeavy, "keep_open", lambda _: None)
            self.load.run()

    def end_one(self) -> bool:
        """A request of one stream ends; whether the stream ends with it."""
        before = self.load.running
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GenerationHeavy, "send_next", lambda _: self.load.stop.set())
            self.load.keep_open()
        self.load.stop.clear()
        return self.load.running < before


@pytest.fixture
def loop() -> Loop:
    return Loop(GenerationHeavy("", "", target=ITL, ttft=TTFT))


def test_one_pod_gets_more_streams_however_often_it_was_too_slow_for_a_moment(loop: Loop) -> None:
    loop.turn(0.0, 0.5, 1.0, 1.2, 1.2, 1.0, 9.0, 1.09)
    assert loop.load.streams == 5


def test_none_is_added_while_one_has_waited_too_long_for_its_first_token(loop: Loop) -> None:
    loop.waited = 0.4 * TTFT
    loop.turn(0.0, 0.0)
    loop.waited = 0.5 * TTFT
    loop.turn(0.0, 0.0)
    assert loop.load.streams == 2


def test_two_pods_get_more_where_they_are_quick(loop: Loop) -> None:
    loop.turn(0.0, 0.0)
    loop.load.enough.set()
    loop.turn(0.7, 0.7, 0.8, 0.8, 0.7)
    assert loop.load.streams == 5


def test_two_pods_that_are_strained_get_one_less_at_a_time(loop: Loop) -> None:
    loop.turn(*[0.0] * 5)
    loop.load.enough.set()
    loop.turn(0.9, 0.9, 0.9)
    assert loop.load.streams == 4
    assert loop.end_one()
    assert not loop.end_one()
    loop.turn(0.9, 0.7)
    assert (loop.load.streams, loop.load.running) == (3, 4)
    assert loop.end_one()
    loop.turn(0.7)
    assert (loop.load.streams, loop.load.running) == (4, 4)


def stream(*steps: tuple[float, int], ended: float = 0.0) -> Outcome:
    answer = Answer(gaps=[gap for gap, _ in steps], sizes=[size for _, size in steps])
    return Outcome(Request("/", {}), answer, 0.0, ended)


def test_the_gap_is_that_of_the_last_tokens_of_the_middle_stream_in_flight() -> None:
    quick, slow_by_now = stream(*[(0.01, 1)] * 60), stream(*[(0.01, 1)] * 60, *[(0.1, 1)] * TOKENS_JUDGED)
    several_an_event = stream(*[(0.2, 4)] * 10)
    too_young, ended = stream((9.0, 1)), stream(*[(9.0, 1)] * 60, ended=1.0)
    sent = [quick, slow_by_now, several_an_event, too_young, ended]
    assert gap_now(sent) == pytest.approx(0.05)
    assert gap_now(sent[:2]) == pytest.approx(0.055)
    assert gap_now(sent[3:]) == 0.0
