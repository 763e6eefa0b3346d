"""A non-streaming answer put together from a stream. Pure.

Which fields an answer has, and which of them are null, depends on vLLM's version. So the frame is an answer of the same
engine build to a request of the same kind (in most cases to the prefill request), and only the fields that differ
between requests are filled in. A stream that does not fit the frame raises `NotAssemblableError`, and the request is
sent again without streaming: a client never gets an answer unlike the engine's own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

Json = dict[str, Any]

_TOP = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint"})
_FRAME = _TOP | {"kv_transfer_params"}
_FRAME_CHOICE = frozenset({"index", "message", "text", "finish_reason", "stop_reason"})
_CHOICE = frozenset({"index", "delta", "text", "finish_reason", "stop_reason"})


class NotAssemblableError(Exception):
    """The stream has a field that the frame lacks."""


def frame_of(answer: Json) -> Json | None:
    """The frame for later answers of this engine and endpoint; None where this answer has fields of its own."""
    choices = cast("list[Json]", answer.get("choices") or [])
    usage = answer.get("usage")
    if len(choices) != 1 or not isinstance(usage, dict):
        return None
    if cast("Json", usage).get("completion_tokens_details"):
        return None  # a reasoning parser divides a complete text differently from a stream
    if _odd(answer, _FRAME) or _odd(choices[0], _FRAME_CHOICE):
        return None
    frame = copy.deepcopy(answer)
    frame["kv_transfer_params"] = None
    if "kv_transfer_params" not in answer:
        del frame["kv_transfer_params"]
    choice = cast("list[Json]", frame["choices"])[0]
    message = choice.get("message")
    if isinstance(message, dict):
        message = cast("Json", message)
        if _odd(message, frozenset({"role", "content"})):
            return None
        message["content"] = ""
    elif isinstance(choice.get("text"), str):
        choice["text"] = ""
    else:
        return None
    return frame


def assemble(frame: Json, events: Sequence[Json]) -> Json:
    """Assemble `events` into one answer with the fields of `frame`."""
    answer = copy.deepcopy(frame)
    choice = cast("list[Json]", answer["choices"])[0]
    text: list[str] = []
    for event in events:
        _check(event, _TOP)
        for part in cast("list[Json]", event.get("choices") or []):
            _check(part, _CHOICE)
            text.append(_text(part, choice))
            if part.get("finish_reason"):
                choice["finish_reason"] = part["finish_reason"]
                choice["stop_reason"] = part.get("stop_reason")
        if event.get("usage"):
            answer["usage"] = _usage(cast("Json", answer["usage"]), cast("Json", event["usage"]))
        for key in ("id", "created", "model", "system_fingerprint"):
            if event.get(key) is not None and key in answer:
                answer[key] = event[key]
    _fill(choice, "".join(text))
    return answer


def _text(part: Json, choice: Json) -> str:
    if "text" in part:
        return cast("str", part["text"])
    delta = cast("Json", part.get("delta") or {})
    _check(delta, frozenset({"role", "content"}))
    if delta.get("role"):
        cast("Json", choice["message"])["role"] = delta["role"]
    return cast("str", delta.get("content") or "")


def _fill(choice: Json, text: str) -> None:
    if "text" in choice:
        choice["text"] = text
    else:
        cast("Json", choice["message"])["content"] = text


def _usage(frame: Json, seen: Json) -> Json:
    """The stream's usage, with null for fields of the frame that streams leave out."""
    filled: Json = {k: seen.get(k) for k in frame}
    for key, value in seen.items():
        nested = frame.get(key)
        if isinstance(value, dict) and isinstance(nested, dict):
            filled[key] = {**dict.fromkeys(cast("Json", nested)), **cast("Json", value)}
        else:
            filled[key] = value
    return filled


def _check(part: Json, known: frozenset[str]) -> None:
    if odd := _odd(part, known):
        raise NotAssemblableError(f"the stream holds '{odd}'")


def _odd(part: Json, known: frozenset[str]) -> str | None:
    """The first field that has a value and is not in `known`."""
    return next((k for k, v in part.items() if k not in known and v is not None and v != []), None)
