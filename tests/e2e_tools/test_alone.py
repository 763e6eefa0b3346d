"""When an answer counts as the engine's own: the same tokens, up to where the engine itself has two best ones."""

from __future__ import annotations

import math

import pytest
from e2e.alone import equal
from e2e.client import Answer, leads
from e2e.load import Outcome, Request

CLEAR, TIED = 0.5, 1e-5


def alone(text: str, *tied: int) -> Outcome:
    margins = [TIED if place in tied else CLEAR for place in range(len(text))]
    return Outcome(Request("/", {}), Answer(text=text, leads=margins))


@pytest.mark.parametrize("text", ["abcdef", "abcxyz"])
def test_a_tie_may_go_either_way_and_decides_what_follows(text: str) -> None:
    assert equal(text, alone("abcdef", 3))


@pytest.mark.parametrize("text", ["abxdef", "abcxy", "abcxyzz", "", "bcdefx"])
def test_what_comes_before_a_tie_and_the_number_of_tokens_may_not(text: str) -> None:
    assert not equal(text, alone("abcdef", 3))


@pytest.mark.parametrize("text", ["abcdex", "abcde", "abcdeff"])
def test_without_a_tie_every_token_counts(text: str) -> None:
    assert not equal(text, alone("abcdef"))


def test_leads_of_both_endpoints() -> None:
    chat = {"content": [{"top_logprobs": [{"logprob": -0.5}, {"logprob": -2.0}]}, {"top_logprobs": [{"logprob": 0.0}]}]}
    assert leads(chat) == [1.5, math.inf]
    assert leads({"top_logprobs": [{"b": -2.0, "a": -0.5}, {"a": 0.0}]}) == [1.5, math.inf]
    assert leads({}) == []
