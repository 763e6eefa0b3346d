"""A client of the OpenAI API that measures: text, TTFT, gaps between tokens, and the router's Server-Timing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

SECONDS = 120.0
Body = dict[str, Any]
Ranking = list[tuple[str, float]]
TLS = httpx.create_ssl_context()
"""Made once: to read the certificates takes longer than a request, and httpx does it for plain HTTP as well."""


@dataclass
class Answer:
    """The answer to a request. `ttft` in seconds; `timing`: the router's Server-Timing, milliseconds by part."""

    text: str = ""
    ttft: float | None = None
    gaps: list[float] = field(default_factory=list[float])
    """Seconds between events that bring text..."""
    sizes: list[int] = field(default_factory=list[int])
    """...and the characters that came at the end of each gap."""
    best: list[Ranking] = field(default_factory=list[Ranking])
    """Per token, where logprobs were asked for: the likeliest tokens with their log probabilities, best first."""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    timing: dict[str, float] = field(default_factory=dict[str, float])
    error: str | None = None

    @property
    def itl(self) -> float | None:
        """Mean gap between tokens in seconds. An event may carry several: tokens are counted, not events."""
        tokens = self.usage.get("completion_tokens", 0)
        return sum(self.gaps) / (tokens - 1) if tokens > 1 and self.gaps else None


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, verify=TLS).status_code == 200
    except httpx.HTTPError:
        return False


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event up to [DONE]."""
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def ask(url: str, path: str, body: Body, headers: dict[str, str] | None = None, answer: Answer | None = None) -> Answer:
    """Send a request, streamed where the body says so. A failure is in `error`; nothing is raised.

    An `answer` that is given is filled while the tokens come, so that another thread can read it.
    """
    answer = answer or Answer()
    try:
        with httpx.Client(timeout=SECONDS, verify=TLS) as client:
            started = time.monotonic()
            with client.stream("POST", f"{url}{path}", json=body, headers=headers) as response:
                answer.timing = server_timing(response.headers.get("server-timing", ""))
                if response.status_code != 200:
                    answer.error = f"{response.status_code} {response.read().decode()[:500]}"
                elif body.get("stream"):
                    _read_stream(response, answer, started)
                else:
                    response.read()
                    _take(answer, response.json())
    except (httpx.HTTPError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


def _read_stream(response: httpx.Response, answer: Answer, started: float) -> None:
    last = started
    for event in events(response):
        if "error" in event:
            answer.error = json.dumps(event["error"])
            return
        before = len(answer.text)
        _take(answer, event)
        if len(answer.text) > before:
            now = time.monotonic()
            if answer.ttft is None:
                answer.ttft = now - started
            else:
                answer.gaps.append(now - last)
                answer.sizes.append(len(answer.text) - before)
            last = now
    if answer.finish_reason is None and answer.error is None:
        answer.error = "the stream ended without a finish_reason"


def _take(answer: Answer, event: dict[str, Any]) -> None:
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices", []):
        part = choice.get("delta") or choice.get("message") or choice
        answer.text += part.get("content") or part.get("text") or ""
        answer.best += rankings(choice.get("logprobs") or {})
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def rankings(logprobs: Body) -> list[Ranking]:
    """Of a choice's `logprobs`: a list of tokens in a chat completion, one dict a token in a completion."""
    content = logprobs.get("content") or []
    chat = [[(best["token"], best["logprob"]) for best in token["top_logprobs"]] for token in content]
    rows = chat or [list(best.items()) for best in logprobs.get("top_logprobs") or []]
    return [sorted(row, key=lambda best: -best[1]) for row in rows]


def server_timing(header: str) -> dict[str, float]:
    """W3C Server-Timing: name;dur=milliseconds, comma-separated."""
    parts = (part.strip().partition(";dur=") for part in header.split(",") if ";dur=" in part)
    return {name: float(duration) for name, _, duration in parts}
