"""Reading streams: split at any byte, nothing but the usage we asked for is taken out, faults are found."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_runtime.router import sse
from phasewise_runtime.router.sse import StreamReader

DONE = b"data: [DONE]\n\n"
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
USAGE = {"choices": [], "system_fingerprint": "fp", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def ev(value: dict[str, Any], end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + end


def tok(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more}


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]


def read(data: bytes, cuts: list[int] | None = None, **options: Any) -> tuple[bytes, StreamReader]:
    reader = StreamReader(**options)
    return b"".join(reader.feed(c) for c in pieces(data, cuts or [])), reader


# Texts that look like what the reader searches for.
texts = st.text(max_size=8) | st.sampled_from(
    ['"error"', '{"error":{}}', "data: [DONE]", "\n\n", '"finish_reason":"abort"', '"usage"', "error", "usage", "é😀"]
)
cuts = st.lists(st.integers(0, 10**6), max_size=12)


@given(st.lists(texts, max_size=6), cuts, st.booleans())
def test_a_stream_passes_byte_for_byte_wherever_it_is_split(words: list[str], at: list[int], strip: bool) -> None:
    body = b"".join([ev(ROLE), b": keep-alive\n\n", *(ev(tok(w)) for w in words), ev(tok("x", "stop")), DONE])
    out, reader = read(body, at, strip_usage=strip)
    assert out == body
    assert reader.done
    assert reader.fault is None
    assert reader.token_events == 1 + sum(1 for i, w in enumerate(words) if w or any(words[:i]))


@given(st.lists(texts, min_size=1, max_size=6), cuts)
def test_only_the_usage_we_asked_for_is_taken_out(words: list[str], at: list[int]) -> None:
    said = b"".join([ev(ROLE), *(ev(tok(w)) for w in words)])
    sent = said + ev(tok("", "stop")) + ev(USAGE) + DONE
    out, reader = read(sent, at, strip_usage=True)
    assert out == said + ev(tok("", "stop", system_fingerprint="fp")) + DONE
    assert reader.usage == USAGE["usage"]
    kept, _ = read(sent, at, strip_usage=False)
    assert kept == sent


@given(st.lists(texts, max_size=4), cuts, st.sampled_from(["error", "abort", "junk"]))
def test_a_fault_is_found_and_what_follows_is_not_passed_on(words: list[str], at: list[int], kind: str) -> None:
    good = b"".join([ev(ROLE), *(ev(tok(w)) for w in words)])
    bad = {
        "error": b'data: {"error": {"message": "m", "code": 500}}\n\n',
        "abort": ev(tok("", "abort")),
        "junk": b'data: {"error"\n\n',
    }[kind]
    out, reader = read(good + bad + DONE, at, strip_usage=True)
    assert out == good
    assert reader.fault
    assert not reader.done


@given(cuts)
def test_carriage_returns_end_events_too(at: list[int]) -> None:
    body = (
        ev(ROLE, b"\r\n\r\n") + ev(tok("a"), b"\r\n\r\n") + ev(tok("", "stop"), b"\r\n\r\n") + b"data: [DONE]\r\n\r\n"
    )
    out, reader = read(body, at)
    assert (out, reader.done, reader.token_events) == (body, True, 1)


OUTPUT = [
    ({"delta": {"content": ""}}, False),
    ({"delta": {"role": "assistant"}}, False),
    ({"delta": {}}, False),
    ({"delta": {"content": "a"}}, True),
    ({"delta": {"reasoning": "a"}}, True),
    ({"delta": {"reasoning_content": "a"}}, True),
    ({"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}, True),
    ({"delta": {"tool_calls": []}}, False),
    ({"text": ""}, False),
    ({"text": "a"}, True),
]


@pytest.mark.parametrize(("choice", "output"), OUTPUT)
def test_which_event_is_the_first_token(choice: dict[str, Any], output: bool) -> None:
    _, reader = read(ev({"choices": [{"index": 0, "finish_reason": None, **choice}]}))
    assert bool(reader.token_events) == output
    assert reader.answered == output


def test_an_end_without_output_is_an_answer() -> None:
    _, reader = read(ev(ROLE) + ev(tok("", "stop")))
    assert reader.answered


def test_usage_in_every_event_is_the_engines_own_setting_and_stays() -> None:
    body = (
        ev(tok("a", usage={"completion_tokens": 1})) + ev(tok("", "stop", usage={"completion_tokens": 1})) + ev(USAGE)
    )
    out, _ = read(body + DONE, strip_usage=True)
    assert out == body + DONE


def test_a_fingerprint_that_is_there_is_not_doubled() -> None:
    body = ev(tok("a")) + ev(tok("", "stop", system_fingerprint="fp"))
    out, _ = read(body + ev(USAGE) + DONE, strip_usage=True)
    assert out == body + DONE


def test_the_error_object_names_the_status() -> None:
    for error, status in ((b'{"message":"m","code":400}', 400), (b'{"message":"m","code":"x"}', 500), (b'"m"', 500)):
        _, reader = read(b'data: {"error":' + error + b"}\n\n")
        assert reader.fault
        assert (reader.fault.status, reader.fault.message) == (status, "m")


def test_an_endless_event_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    _, reader = read(b"data: " + b"x" * 200)
    assert reader.fault
    assert reader.fault.reason == "malformed"


def test_events_are_kept_for_an_answer_that_is_assembled() -> None:
    _, reader = read(ev(ROLE) + ev(tok("a")) + ev(tok("b", "stop")) + ev(USAGE) + DONE, keep=True)
    assert reader.events == [ROLE, tok("a"), tok("b", "stop"), USAGE]
