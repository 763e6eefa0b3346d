"""Values that no engine takes are refused before any engine computes, in vLLM's words."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import pair

from phasewise_runtime.router import parameters
from phasewise_runtime.router.errors import ApiError

CHAT, COMPLETION = True, False
BOTH = (CHAT, COMPLETION)
REFUSED: list[tuple[dict[str, Any], tuple[bool, ...], str, str]] = [
    ({"max_tokens": 0}, BOTH, "max_tokens", "max_tokens must be at least 1, got 0."),
    ({"max_tokens": -1, "echo": True}, BOTH, "max_tokens", "at least 1"),
    ({"max_tokens": "many"}, BOTH, "max_tokens", "max_tokens must be an integer, got 'many'."),
    ({"max_tokens": 1.5}, BOTH, "max_tokens", "an integer"),
    ({"max_tokens": [1]}, BOTH, "max_tokens", "an integer"),
    ({"max_completion_tokens": 0, "max_tokens": 5}, (CHAT,), "max_completion_tokens", "at least 1"),
    ({"n": 0}, BOTH, "n", "n must be at least 1, got 0."),
    ({"n": "x"}, BOTH, "n", "an integer"),
    ({"temperature": -0.1}, BOTH, "temperature", "temperature must be in [0, 2], got -0.1."),
    ({"temperature": 2.1}, BOTH, "temperature", "in [0, 2]"),
    ({"temperature": "nan"}, BOTH, "temperature", "in [0, 2]"),
    ({"temperature": {}}, BOTH, "temperature", "a number"),
    ({"top_p": 0}, BOTH, "top_p", "top_p must be in (0, 1], got 0."),
    ({"top_p": 1.1}, BOTH, "top_p", "in (0, 1]"),
    ({"top_k": -2}, BOTH, "top_k", "at least 1"),
    ({"min_p": 2}, BOTH, "min_p", "in [0, 1]"),
    ({"presence_penalty": 3}, BOTH, "presence_penalty", "in [-2, 2]"),
    ({"frequency_penalty": -3}, BOTH, "frequency_penalty", "in [-2, 2]"),
    ({"repetition_penalty": 0}, BOTH, "repetition_penalty", "greater than zero"),
    ({"min_tokens": -1}, BOTH, "min_tokens", "greater than or equal to 0"),
    ({"min_tokens": 6, "max_tokens": 5}, BOTH, "min_tokens", "less than or equal to max_tokens=5, got 6"),
    ({"seed": 2**63}, BOTH, "seed", "64 bits"),
    ({"seed": "x"}, BOTH, "seed", "an integer"),
    ({"stream_options": {"include_usage": True}}, BOTH, "stream_options", "only be defined when `stream=True`"),
    ({"top_logprobs": 2}, (CHAT,), "top_logprobs", "`logprobs` must be set to true"),
    ({"tools": []}, (CHAT,), "tools", "must not be an empty array"),
]
TAKEN: list[tuple[dict[str, Any], tuple[bool, ...]]] = [
    ({}, BOTH),
    ({"max_tokens": None, "temperature": None, "n": None, "stream_options": None}, BOTH),
    ({"max_tokens": 5.0, "temperature": "0.5", "n": "1", "seed": -3}, BOTH),
    ({"max_tokens": 0, "echo": True}, (COMPLETION,)),
    ({"max_tokens": 0, "max_completion_tokens": 5}, (CHAT,)),
    ({"max_completion_tokens": 0, "max_tokens": 5}, (COMPLETION,)),
    ({"max_completion_tokens": "all", "top_logprobs": "many"}, (COMPLETION,)),  # it has no such fields: ignored
    ({"temperature": 2, "top_p": 1, "top_k": -1, "min_p": 0, "min_tokens": 0, "presence_penalty": -2}, BOTH),
    ({"stream": True, "stream_options": {"include_usage": True}}, BOTH),
    ({"logprobs": True, "top_logprobs": 2}, (CHAT,)),
    ({"unknown": object()}, BOTH),
]


@pytest.mark.parametrize(
    ("body", "chat", "param", "says"), [(body, chat, *rest) for body, both, *rest in REFUSED for chat in both]
)
def test_refused(body: dict[str, Any], chat: bool, param: str, says: str) -> None:
    with pytest.raises(ApiError) as e:
        parameters.check(body, chat=chat)
    assert (e.value.status, e.value.param) == (400, param)
    assert says in e.value.message


@pytest.mark.parametrize(("body", "chat"), [(body, chat) for body, both in TAKEN for chat in both])
def test_taken(body: dict[str, Any], chat: bool) -> None:
    parameters.check(body, chat=chat)


async def test_a_refused_request_reaches_no_engine(router: RouterFactory) -> None:
    p, d = pair()
    async with router(p, d) as r:
        reply = await r.chat(max_tokens=0)
    assert reply.status == 400
    assert reply.json["error"] == {
        "message": "max_tokens must be at least 1, got 0.",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": None,
    }
    assert p.requests == d.requests == []


async def test_a_completion_is_prefilled_for_one_token_whatever_it_says_about_completion_tokens(
    router: RouterFactory,
) -> None:
    p, d = pair()
    async with router(p, d) as r:
        assert (await r.complete(max_completion_tokens=50)).status == 200
    assert p.bodies[0]["max_tokens"] == 1
    assert "max_completion_tokens" not in p.bodies[0]
    assert d.bodies[0]["max_completion_tokens"] == 50
