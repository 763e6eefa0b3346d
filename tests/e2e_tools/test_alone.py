"""When an answer counts as the engine's own: the same tokens, but for a tie of the engine's two best."""

from __future__ import annotations

import pytest
from e2e.alone import equal
from e2e.client import Answer, Ranking, rankings
from e2e.load import Outcome, Request

CLEAR, TIED = 0.5, 1e-5


def alone(text: str, tied: int | None = None) -> Outcome:
    """The runner-up is x everywhere; at `tied` it is as good."""
    best: list[Ranking] = [
        [(token, -0.5), ("x", -0.5 - (TIED if place == tied else CLEAR))] for place, token in enumerate(text)
    ]
    return Outcome(Request("/", {}), Answer(text=text, best=best))


@pytest.mark.parametrize("text", ["abcdef", "abcxyz"])
def test_a_tie_may_go_either_way_and_decides_what_follows(text: str) -> None:
    assert equal(text, alone("abcdef", tied=3))


@pytest.mark.parametrize("text", ["abxdef", "abcyef", "abcdex", "abcxy", "abcxyzz", "abc", "", "bcdefx"])
def test_nothing_else_may_differ(text: str) -> None:
    assert not equal(text, alone("abcdef", tied=3))


@pytest.mark.parametrize("text", ["abcdex", "abcxef", "abcde", "abcdeff"])
def test_without_a_tie_every_token_counts(text: str) -> None:
    assert not equal(text, alone("abcdef"))


def test_rankings_of_both_endpoints() -> None:
    chat = {"content": [{"top_logprobs": [{"token": "b", "logprob": -2.0}, {"token": "a", "logprob": -0.5}]}]}
    assert rankings(chat) == rankings({"top_logprobs": [{"b": -2.0, "a": -0.5}]}) == [[("a", -0.5), ("b", -2.0)]]
    assert rankings({}) == []
