"""Every parameter of OpenAI's API reference is answered or refused with its name, and no engine ends.

https://platform.openai.com/docs/api-reference, chat/create and completions/create; and the parameters of vLLM that
once ended an engine or gave prefill and decode different prompts.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from e2e.client import SECONDS, TLS
from e2e.load import CHAT, COMPLETIONS, restarts
from e2e.service import Service
from phasewise_runtime import contract

Body = dict[str, Any]
LONG = "a prompt that is computed in more than one piece, since it has over 32 tokens: "
"""Longer than the example's max-num-batched-tokens. A token is a character."""
WEATHER: Body = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
SCHEMA: Body = {"name": "answer", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
AT_BOTH: list[Body] = [
    {},
    {"frequency_penalty": 0.5},
    {"logit_bias": {"5": 1}},
    {"max_completion_tokens": 3},
    {"max_tokens": 3},
    {"max_tokens": 0},
    {"max_tokens": 100_000},
    {"n": 2},
    {"n": 2, "seed": 1},
    {"n": 2, "temperature": 0},
    {"presence_penalty": 0.5},
    {"seed": 7},
    {"seed": 7, "stream": True},
    {"stop": "x"},
    {"stop": ["x", "y"]},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}},
    {"temperature": 0},
    {"temperature": 2.5},
    {"top_p": 0.5},
    {"user": "u"},
    {"response_format": {"type": "json_object"}},
    {"truncate_prompt_tokens": -1},
    {"truncate_prompt_tokens": 40},
    {"echo": True},
    {"best_of": 2},
    {"ignore_eos": True, "min_tokens": 2, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1},
]
OF_CHAT: list[Body] = [
    {"audio": {"voice": "alloy", "format": "wav"}, "modalities": ["text", "audio"]},
    {"function_call": "none", "functions": [WEATHER["function"]]},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"metadata": {"a": "b"}},
    {"parallel_tool_calls": False},
    {"prediction": {"type": "content", "content": "x"}},
    {"prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    {"reasoning_effort": "low"},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    {"safety_identifier": "s"},
    {"service_tier": "auto"},
    {"store": False},
    {"tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": "none"},
    {"tools": [WEATHER], "tool_choice": "required"},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    {"verbosity": "low"},
    {"web_search_options": {}},
]
OF_COMPLETIONS: list[Body] = [
    {"echo": True, "logprobs": 1},
    {"echo": True, "max_tokens": 0},
    {"logprobs": 2},
    {"suffix": "end"},
    {"prompt": ["a", "b"]},
    {"prompt": [5, 6, 7]},
    {"prompt": [[5, 6], [7, 8]], "stream": True},
]


def bodies(model: str) -> list[tuple[str, Body]]:
    chat: Body = {"model": model, "messages": [{"role": "user", "content": LONG}], "max_tokens": 2}
    completion: Body = {"model": model, "prompt": LONG, "max_tokens": 2}
    return [(CHAT, {**chat, **given}) for given in (*AT_BOTH, *OF_CHAT)] + [
        (COMPLETIONS, {**completion, **given}) for given in (*AT_BOTH, *OF_COMPLETIONS)
    ]


def fault(url: str, path: str, body: Body) -> str | None:
    """What is wrong with the answer; None where it is complete, or refuses the request with a reason."""
    answer = httpx.post(f"{url}{path}", json=body, timeout=SECONDS, verify=TLS)
    if answer.status_code == 400:
        error = answer.json()["error"]
        clear = error["message"] and "stack trace" not in error["message"] and error["type"] == "invalid_request_error"
        return None if clear else f"not clear: {error}"
    if answer.status_code != 200:
        return f"{answer.status_code}: {answer.text[:300]}"
    if body.get("stream"):
        events = answer.text.rstrip().split("\n\n")
        return None if events[-1] == "data: [DONE]" and '"error"' not in answer.text else events[-1][:300]
    return None if answer.json()["choices"] else "no choices"


def asked_with_each(url: str, model: str) -> dict[str, str]:
    """The faulty answers, by request."""
    with ThreadPoolExecutor(8) as pool:
        found = [(path, body, pool.submit(fault, url, path, body)) for path, body in bodies(model)]
        return {f"{path} {json.dumps(body)}": wrong for path, body, answer in found if (wrong := answer.result())}


def seeded(url: str, model: str, salt: str) -> str:
    """A salt keeps the prompt out of the prefix cache, so that it is computed in pieces again."""
    body = {"model": model, "prompt": LONG * 2, "max_tokens": 8, "seed": 7, "cache_salt": salt}
    return httpx.post(f"{url}{COMPLETIONS}", json=body, timeout=SECONDS, verify=TLS).json()["choices"][0]["text"]


def test_every_parameter_is_answered_or_refused_and_no_engine_ends(chat: Service) -> None:
    before = {role: restarts(chat.name, role, chat.namespace) for role in contract.ENGINE_ROLES}
    assert asked_with_each(chat.url, chat.model) == {}
    assert seeded(chat.url, chat.model, "one") == seeded(chat.url, chat.model, "two")
    assert {role: restarts(chat.name, role, chat.namespace) for role in contract.ENGINE_ROLES} == before
