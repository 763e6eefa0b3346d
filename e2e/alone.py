"""What an answer through the service must equal: the engine's own to the same request, past the router.

Equal but for ties. How requests are batched decides in which order an engine adds its numbers up; at float32 that moves
the logits of the tiny model by some 1e-5 (10,000 tokens on two cores). Where its two best tokens are closer than that,
each is as right as the other and leads to another text from there on: once in some thousands of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from e2e.client import Ranking
from e2e.load import CHAT, Outcome, Request, send_all

TIE = 1e-4
"""Nats between the two best tokens, ten times the difference that batching was seen to make."""


def ask_alone(engine_alone: str, requests: Sequence[Request], at_once: int) -> list[Outcome]:
    """Answers with the `best` tokens of each place. A salt keeps the engine's own cache out of them.

    Raises AssertionError where the engine does not answer.
    """
    outcomes = send_all(engine_alone, [_salted(r) for r in requests], at_once)
    for outcome in outcomes:
        if outcome.answer.error:
            raise AssertionError(f"the engine alone answers {outcome.request.path} with {outcome.answer.error}")
    return outcomes


def _salted(request: Request) -> Request:
    wish = {"logprobs": True, "top_logprobs": 2} if request.path == CHAT else {"logprobs": 2}
    return replace(request, body={**request.body, **wish, "cache_salt": "alone"})


def equal(text: str, alone: Outcome) -> bool:
    """Token by token; from a tie on that went the other way, as many. Of the tiny model every character is a token."""
    right, best = alone.answer.text, alone.answer.best
    if text == right:
        return True
    parting = next(place for place, (a, b) in enumerate(zip_longest(text, right)) if a != b)
    return len(text) == len(right) == len(best) and _is_tied(best[parting], text[parting])


def _is_tied(best: Ranking, token: str) -> bool:
    return any(name == token and best[0][1] - logprob < TIE for name, logprob in best[1:])


def differences(outcomes: Sequence[Outcome], engine_alone: str, at_once: int = 8) -> list[str]:
    """What the engine alone answers otherwise."""
    alone = ask_alone(engine_alone, [o.request for o in outcomes], at_once)
    return [
        f"{ours.request.path}: {ours.answer.text!r}, alone {right.answer.text!r}"
        for ours, right in zip(outcomes, alone, strict=True)
        if not equal(ours.answer.text, right)
    ]
