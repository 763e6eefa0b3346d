"""The reference: the engine asked directly, past the router. The service must answer the same, but for ties.

How requests are batched decides in which order an engine adds its numbers up; at float32 that moves the logits of the
tiny model by some 1e-5 (10,000 tokens on two cores). Where its two best tokens are closer than that, either is correct
and leads to another text from there on: in some thousands of answers this happens in one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from e2e.client import Ranking
from e2e.load import CHAT, Outcome, Request, send_all

TIE = 1e-4
"""Nats between the two best tokens, ten times the difference that batching was seen to make."""


class Reference:
    """An engine's own answers: each request is asked once and its answer kept, since the engine answers it alike."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._answers: dict[str, Outcome] = {}

    def ask(self, requests: Sequence[Request], at_once: int = 8) -> list[Outcome]:
        """Answers with the `best` tokens of each place. AssertionError where the engine does not answer."""
        missing = {_key(r): _with_logprobs(r) for r in requests if _key(r) not in self._answers}
        for key, outcome in zip(missing, send_all(self.url, list(missing.values()), at_once), strict=True):
            if outcome.answer.error:
                raise AssertionError(f"the engine itself answers {outcome.request.path} with {outcome.answer.error}")
            self._answers[key] = outcome
        return [self._answers[_key(r)] for r in requests]

    def differences(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Answers that lack a token, have one twice, or another one than the engine gives."""
        expected = self.ask([o.request for o in outcomes])
        return [
            f"{o.request.path}: {_tokens(o)} tokens {o.answer.text!r}, the engine itself {right.answer.text!r}"
            for o, right in zip(outcomes, expected, strict=True)
            if _tokens(o) != o.request.body["max_tokens"] or not equal(o.answer.text, right)
        ]


def equal(text: str, reference: Outcome) -> bool:
    """Token by token, until a tie goes the other way; from there on the same number of tokens.

    Of the tiny model every character is a token.
    """
    expected, best = reference.answer.text, reference.answer.best
    if text == expected:
        return True
    parting = next(place for place, (a, b) in enumerate(zip_longest(text, expected)) if a != b)
    return len(text) == len(expected) == len(best) and _is_tied(best[parting], text[parting])


def _is_tied(best: Ranking, token: str) -> bool:
    return any(name == token and best[0][1] - logprob < TIE for name, logprob in best[1:])


def _key(request: Request) -> str:
    return json.dumps([request.path, {**request.body, "cache_salt": ""}], sort_keys=True)


def _with_logprobs(request: Request) -> Request:
    """A salt of its own keeps the engine's prefix cache out of the answer."""
    logprobs = {"logprobs": True, "top_logprobs": 2} if request.path == CHAT else {"logprobs": 2}
    return replace(request, body={**request.body, **logprobs, "cache_salt": "reference"})


def _tokens(outcome: Outcome) -> int:
    return outcome.answer.usage.get("completion_tokens", 0)
