"""Non-streaming answers put together from streams: complete, or not at all."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phasewise_runtime.router.assembly import NotAssemblableError, assemble, frame_of

MESSAGE = {"role": "assistant", "content": "old", "refusal": None, "reasoning": None}
USAGE = {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": None}
TOP = {"created": 1, "model": "m", "service_tier": None, "system_fingerprint": "fp", "usage": USAGE}
END = {"logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": None}
CHAT: dict[str, Any] = {
    "id": "old",
    "object": "chat.completion",
    **TOP,
    "choices": [{"index": 0, "message": MESSAGE, **END}],
    "kv_transfer_params": {"remote_host": "h"},
    "prompt_logprobs": None,
}
TEXT: dict[str, Any] = {**CHAT, "object": "text_completion", "choices": [{"index": 0, "text": "old", **END}]}


def delta(finish: str | None = None, stop: Any = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish, "stop_reason": stop}
    return {"id": "new", "object": "chat.completion.chunk", "created": 2, "model": "m", "choices": [choice]}


def text(value: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": value, "logprobs": None, "finish_reason": finish}
    return {"id": "new", "object": "text_completion", "created": 2, "model": "m", "choices": [choice]}


def usage(**details: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, **details}
    return {"id": "new", "created": 2, "model": "m", "choices": [], "usage": counts, "system_fingerprint": "fp2"}


def framed(answer: dict[str, Any]) -> dict[str, Any]:
    frame = frame_of(answer)
    assert frame is not None
    return frame


def test_a_chat_answer() -> None:
    events = [delta(role="assistant", content=""), delta(content="a"), delta("stop", "X", content="b"), usage()]
    got = assemble(framed(CHAT), events)
    want: dict[str, Any] = copy.deepcopy(CHAT) | {
        "id": "new",
        "created": 2,
        "system_fingerprint": "fp2",
        "kv_transfer_params": None,
    }
    want["choices"][0] |= {"message": {**MESSAGE, "content": "ab"}, "finish_reason": "stop", "stop_reason": "X"}
    want["usage"] = {**USAGE, "total_tokens": 5, "completion_tokens": 2}
    assert got == want


def test_a_completion() -> None:
    got = assemble(framed(TEXT), [text("a"), text("b", "stop"), usage()])
    assert got["choices"][0]["text"] == "ab"
    assert got["choices"][0]["finish_reason"] == "stop"
    assert got["kv_transfer_params"] is None


def test_the_frame_is_not_changed_by_what_is_assembled() -> None:
    frame = framed(CHAT)
    before = copy.deepcopy(frame)
    assemble(frame, [delta("stop", content="a"), usage()])
    assert frame == before


def test_usage_details_keep_the_fields_that_streams_leave_out() -> None:
    answer = copy.deepcopy(TEXT)
    answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 9, "multimodal_tokens": None}
    got = assemble(framed(answer), [text("a", "stop"), usage(prompt_tokens_details={"cached_tokens": 1})])
    assert got["usage"]["prompt_tokens_details"] == {"cached_tokens": 1, "multimodal_tokens": None}
    got = assemble(framed(answer), [text("a", "stop"), usage()])
    assert got["usage"]["prompt_tokens_details"] is None


def test_engines_without_kv_parameters_in_their_answers() -> None:
    answer = {k: v for k, v in TEXT.items() if k != "kv_transfer_params"}
    assert "kv_transfer_params" not in assemble(framed(answer), [text("a", "stop"), usage()])


def changed(base: dict[str, Any], **choice: Any) -> dict[str, Any]:
    answer = copy.deepcopy(base)
    answer["choices"][0] |= choice
    return answer


NO_FRAME: list[tuple[str, dict[str, Any]]] = [
    ("several choices", CHAT | {"choices": [{}, {}]}),
    ("no choice", CHAT | {"choices": []}),
    ("no usage", CHAT | {"usage": None}),
    ("a reasoning parser", CHAT | {"usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": 0}}}),
    ("reasoning", changed(CHAT, message={**MESSAGE, "reasoning": "r"})),
    ("tool calls", changed(CHAT, message={**MESSAGE, "tool_calls": [{}]})),
    ("logprobs", changed(CHAT, logprobs={"content": []})),
    ("per-request metrics", CHAT | {"metrics": {"x": 1}}),
    ("neither text nor message", changed(TEXT, text=None)),
]


@pytest.mark.parametrize("answer", [c[1] for c in NO_FRAME], ids=[c[0] for c in NO_FRAME])
def test_answers_that_make_no_frame(answer: dict[str, Any]) -> None:
    assert frame_of(answer) is None


@pytest.mark.parametrize(
    "event",
    [
        delta(reasoning="r"),
        delta(tool_calls=[{}]),
        {**delta(content="a"), "metrics": {"x": 1}},
        {**text("a"), "choices": [{"index": 0, "text": "a", "logprobs": {}, "finish_reason": None}]},
    ],
)
def test_a_field_that_the_frame_lacks_is_not_dropped(event: dict[str, Any]) -> None:
    with pytest.raises(NotAssemblableError):
        assemble(framed(CHAT), [event, usage()])
