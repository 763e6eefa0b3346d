"""What an answer through the service must equal: the engine's own to the same request, past the router.

Equal but for ties. How requests are batched decides in which order an engine adds its numbers up; at float32 that moves
the logits of the tiny model by some 1e-5 (10,000 tokens on two cores). Where its two best tokens are closer than that,
each is as right as the other and leads to another text from there on: once in a few hundred answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from e2e.load import CHAT, Outcome, Request, send_all

TIE = 1e-4
"""Nats between the two best tokens, ten times the difference that batching was seen to make."""


def ask_alone(engine_alone: str, requests: Sequence[Request], at_once: int) -> list[Outcome]:
    """Answers with their `leads`. A salt keeps the engine's own cache out of them.

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
    """Token by token, up to the first tie. Of the tiny model every character is a token."""
    right, leads = alone.answer.text, alone.answer.leads
    decided = next((place for place, lead in enumerate(leads) if lead < TIE), len(right))
    return text == right or (len(text) == len(right) == len(leads) and text[:decided] == right[:decided])


def differences(outcomes: Sequence[Outcome], engine_alone: str, at_once: int = 8) -> list[str]:
    """What the engine alone answers otherwise."""
    alone = ask_alone(engine_alone, [o.request for o in outcomes], at_once)
    return [
        f"{ours.request.path}: {ours.answer.text!r}, alone {right.answer.text!r}"
        for ours, right in zip(outcomes, alone, strict=True)
        if not equal(ours.answer.text, right)
    ]
