"""The loads: how much they send, when their pool began to miss its target, and which answers equal the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
from e2e import load_shapes
from e2e import reference as reference_module
from e2e.client import Answer, Ranking, rankings
from e2e.load import Outcome, Request, mixed_requests, salted
from e2e.load_shapes import (
    MAX_STREAMS,
    RECENT_TOKENS,
    GenerationHeavy,
    PromptHeavy,
    ShapedLoad,
    breach,
    current_itl,
    next_streams,
)
from e2e.reference import Reference, equal

TTFT, ITL = 3.0, 0.06


def answered(began: float, ttft: float | None, itl: float = 0.01) -> Outcome:
    answer = Answer(ttft=ttft, gaps=[itl] * 10 if ttft else [], usage={"completion_tokens": 11})
    return Outcome(Request("/", {}), answer, began, began + (ttft or 0.0) + 10 * itl)


def prompts(*sent: Outcome) -> ShapedLoad:
    return PromptHeavy("", "", sent=list(sent))


def streams(*sent: Outcome) -> ShapedLoad:
    return GenerationHeavy("", "", sent=list(sent))


def test_the_third_miss_within_seconds_is_the_breach() -> None:
    assert breach(prompts(*(answered(at, ttft=5.0) for at in (0, 1, 2, 3))), TTFT, ITL) == 2 + TTFT


def test_a_request_without_a_token_has_missed_once_the_target_is_over() -> None:
    assert breach(prompts(*(answered(at, ttft=None) for at in (0, 1, 2))), TTFT, ITL) == 2 + TTFT


def test_single_slow_requests_are_no_breach() -> None:
    assert breach(prompts(*(answered(at, ttft=5.0) for at in (0, 20, 40, 60))), TTFT, ITL) == math.inf
    assert breach(prompts(answered(0, ttft=1.0)), TTFT, ITL) == math.inf


@pytest.mark.parametrize("load", [streams, prompts])
def test_a_missed_itl_is_a_breach_for_decode_only(load: Callable[..., ShapedLoad]) -> None:
    slow = [answered(at, ttft=1.0, itl=0.1) for at in (0, 1, 2)]
    assert breach(load(*slow), TTFT, ITL) == (slow[2].ended if load is streams else math.inf)


@pytest.mark.parametrize(
    ("streams", "itl", "waited", "grown", "then"),
    [
        (0, 0.0, 0.0, False, 2),
        (4, 0.49, 0.0, False, 6),
        (4, 0.5, 0.0, False, 5),
        (4, 0.49, 0.0, True, 5),
        (3, 1.09, 0.0, False, 4),
        (4, 1.2, 0.0, False, 4),
        (4, 9.0, 0.0, False, 4),
        (2, 0.9, 0.4, False, 3),
        (2, 0.9, 0.5, False, 2),
        (MAX_STREAMS - 1, 0.0, 0.0, False, MAX_STREAMS),
        (MAX_STREAMS, 0.0, 0.0, False, MAX_STREAMS),
        (2, 0.7, 0.0, True, 3),
        (2, 0.8, 0.0, True, 2),
        (5, 0.9, 0.0, True, 4),
        (1, 0.9, 0.0, True, 1),
    ],
)
def test_streams_are_added_while_one_pod_is_not_overloaded_and_two_are_calm(
    streams: int, itl: float, waited: float, grown: bool, then: int
) -> None:
    assert next_streams(streams, itl, waited, grown=grown) == then


def test_a_stream_that_is_too_many_ends_with_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    load = GenerationHeavy("", "", streams=2, running=3)
    sent: list[None] = []
    monkeypatch.setattr(load, "send_next", lambda: sent.append(None))
    load.keep_open()
    assert (load.running, sent) == (2, [])


class Turn(NamedTuple):
    """What a turn of the generation-heavy load finds. ITL and the longest wait for a first token in their targets."""

    itl: float
    waited: float = 0.0
    stream_ends: bool = False
    """A request of a stream that is too many ended before the turn, and the stream with it."""


def run_turns(load: GenerationHeavy, *turns: Turn) -> None:
    left, now = iter(turns), Turn(0.0)
    end_stream = load.keep_open

    def wait(_: float) -> bool:
        nonlocal now
        if (turn := next(left, None)) is None:
            return True
        now = turn
        if turn.stream_ends:
            end_stream()
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load.stop, "wait", wait)
        patch.setattr(load_shapes, "current_itl", lambda _: now.itl * ITL)
        patch.setattr(load_shapes, "longest_wait", lambda _: now.waited * TTFT)
        patch.setattr(load, "keep_open", lambda: None)
        patch.setattr(load, "send_next", lambda: pytest.fail("no stream is too many"))
        load.run()


@pytest.mark.parametrize(
    ("before", "grown", "turns", "desired", "running"),
    [
        (0, False, [Turn(1.0), Turn(1.0)], 2, 2),
        (0, False, [Turn(0.4), Turn(1.2), Turn(0.4)], 4, 4),
        (2, False, [Turn(1.0, waited=0.4), Turn(1.0, waited=0.5)], 3, 3),
        (5, True, [Turn(0.7), Turn(0.8), Turn(0.7)], 7, 7),
        (5, True, [Turn(0.9), Turn(0.9), Turn(0.9)], 4, 5),
        (5, True, [Turn(0.9), Turn(0.9), Turn(0.9, stream_ends=True)], 3, 4),
        (5, True, [Turn(0.9), Turn(0.7, stream_ends=True)], 5, 5),
    ],
)
def test_the_load_opens_streams_and_waits_until_one_that_is_too_many_has_ended(
    before: int, grown: bool, turns: list[Turn], desired: int, running: int
) -> None:
    load = GenerationHeavy("", "", target=ITL, ttft=TTFT, streams=before, running=before)
    if grown:
        load.pool_has_grown.set()
    run_turns(load, *turns)
    assert (load.streams, load.running) == (desired, running)


def stream(*steps: tuple[float, int], ended: float = 0.0) -> Outcome:
    answer = Answer(gaps=[gap for gap, _ in steps], sizes=[size for _, size in steps])
    return Outcome(Request("/", {}), answer, 0.0, ended)


def test_current_itl_is_that_of_the_last_tokens_of_the_median_stream_in_flight() -> None:
    quick, slow_by_now = stream(*[(0.01, 1)] * 60), stream(*[(0.01, 1)] * 60, *[(0.1, 1)] * RECENT_TOKENS)
    several_an_event = stream(*[(0.2, 4)] * 10)
    too_young, ended = stream((9.0, 1)), stream(*[(9.0, 1)] * 60, ended=1.0)
    sent = [quick, slow_by_now, several_an_event, too_young, ended]
    assert current_itl(sent) == pytest.approx(0.05)
    assert current_itl(sent[:2]) == pytest.approx(0.055)
    assert current_itl(sent[3:]) == 0.0


CLEAR, TIED = 0.5, 1e-5


def reference(text: str, tied: int | None = None) -> Outcome:
    """The runner-up is x everywhere; at `tied` it is as good."""
    best: list[Ranking] = [
        [(token, -0.5), ("x", -0.5 - (TIED if place == tied else CLEAR))] for place, token in enumerate(text)
    ]
    return Outcome(Request("/", {}), Answer(text=text, best=best))


@pytest.mark.parametrize("text", ["abcdef", "abcxyz"])
def test_a_tie_may_go_either_way_and_decides_what_follows(text: str) -> None:
    assert equal(text, reference("abcdef", tied=3))


@pytest.mark.parametrize("text", ["abxdef", "abcyef", "abcdex", "abcxy", "abcxyzz", "abc", "", "bcdefx"])
def test_nothing_else_may_differ(text: str) -> None:
    assert not equal(text, reference("abcdef", tied=3))


@pytest.mark.parametrize("text", ["abcdex", "abcxef", "abcde", "abcdeff"])
def test_without_a_tie_every_token_counts(text: str) -> None:
    assert not equal(text, reference("abcdef"))


def test_rankings_of_both_endpoints() -> None:
    chat = {"content": [{"top_logprobs": [{"token": "b", "logprob": -2.0}, {"token": "a", "logprob": -0.5}]}]}
    assert rankings(chat) == rankings({"top_logprobs": [{"b": -2.0, "a": -0.5}]}) == [[("a", -0.5), ("b", -2.0)]]
    assert rankings({}) == []


def test_the_reference_is_asked_once_for_each_prompt_and_compared_token_by_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Request] = []

    def answer(url: str, requests: list[Request], at_once: int) -> list[Outcome]:
        asked.extend(requests)
        return [Outcome(r, reference("abc").answer) for r in requests]

    def outcome(text: str, tokens: int) -> Outcome:
        return Outcome(salted(request), Answer(text=text, usage={"completion_tokens": tokens}))

    monkeypatch.setattr(reference_module, "send_all", answer)
    request = Request("/v1/completions", {"prompt": "p", "max_tokens": 3})
    engine = Reference("")
    assert engine.differences([outcome("abc", 3), outcome("abc", 3)]) == []
    assert len(engine.differences([outcome("abc", 2), outcome("abd", 3), outcome("abc", 3)])) == 2
    assert len(asked) == 1


def test_mixed_requests_are_of_all_kinds_and_lengths() -> None:
    requests = mixed_requests("m", 800)
    assert {(r.path, r.body["stream"]) for r in requests} == {
        (path, stream) for path in ("/v1/chat/completions", "/v1/completions") for stream in (True, False)
    }
    lengths = [len(r.body.get("prompt") or r.body["messages"][0]["content"]) for r in requests]
    assert (min(lengths), max(lengths), len(set(lengths))) == (100, 800, len(lengths))
