"""What the answers to a canary prove, as tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_runtime.router import kv_paths as kp
from phasewise_runtime.router.kv_evidence import (
    DIGITS,
    PROMPT,
    TOLERANCE,
    Output,
    Result,
    Transfers,
    answers_equal,
    canary_request,
    judge,
    read_output,
    read_progress,
    read_transfers,
)
from phasewise_runtime.router.protocol import decode_body, prefill_body

EXPOSITIONS = Path(__file__).parents[2] / "operator" / "scaling" / "signals" / "expositions"


def out(
    *tokens: str, logprobs: float = -1.0, likely: dict[str, float] | None = None, prompt: int | None = 300
) -> Output:
    top = [{t: logprobs, **(likely or {})} for t in tokens]
    return Output(prompt, "".join(tokens), tokens, (logprobs,) * len(tokens), top)


ALONE = out("a", "b", "c")
EQUAL: list[tuple[str, Output, Output, bool | None]] = [
    ("identical", ALONE, ALONE, True),
    ("within the tolerance", ALONE, out("a", "b", "c", logprobs=-1.0 - TOLERANCE), True),
    ("beyond the tolerance", ALONE, out("a", "b", "c", logprobs=-1.1 - TOLERANCE), False),
    ("another token", ALONE, out("a", "x", "c"), False),
    (
        "two nearly equal tokens changed places; what follows has another context",
        out("a", "b", "c", likely={"x": -1.2}),
        out("a", "x", "z", logprobs=-1.1, likely={"b": -1.3}),
        True,
    ),
    ("likely in one answer only", out("a", "b", likely={"x": -1.2}), out("a", "x"), False),
    ("likely, but not as likely", out("a", "b", likely={"x": -3.0}), out("a", "x", likely={"b": -1.2}), False),
    ("shorter", ALONE, out("a", "b"), False),
    ("no log probabilities, same text", Output(300, "abc"), ALONE, True),
    ("no log probabilities, another text", Output(300, "abd"), ALONE, None),
]


@pytest.mark.parametrize(("alone", "with_kv", "equal"), [c[1:] for c in EQUAL], ids=[c[0] for c in EQUAL])
def test_answers_are_equal(alone: Output, with_kv: Output, equal: bool | None) -> None:
    assert answers_equal(alone, with_kv) is equal


@given(st.lists(st.floats(-9, 0), min_size=1, max_size=8), st.floats(-2, 2))
def test_an_answer_that_is_off_by_more_than_the_tolerance_anywhere_is_another_one(ps: list[float], off: float) -> None:
    tokens = tuple(str(i) for i in range(len(ps)))
    alone = Output(300, "", tokens, tuple(ps), [{}] * len(ps))
    moved = replace(alone, logprobs=(*ps[:-1], ps[-1] + off))
    assert answers_equal(alone, moved) == (abs(ps[-1] - (ps[-1] + off)) <= TOLERANCE)


MOVED = Transfers(bytes=1000.0, failed=0.0, external=300.0, computed=0.0)
UNKNOWN = Transfers()
JUDGED: list[tuple[str, int | None, Output, Transfers, Result]] = [
    ("all is well", 300, ALONE, MOVED, Result(bytes=1000.0)),
    ("the engine does not count bytes", 300, ALONE, UNKNOWN, Result(bytes=None)),
    ("only tokens are counted", 300, ALONE, Transfers(external=300.0), Result(bytes=None)),
    ("prompts are not counted", None, replace(ALONE, prompt_tokens=None), MOVED, Result(bytes=1000.0)),
    ("prefill counted another prompt", 299, ALONE, MOVED, Result(kp.PROMPT_MISMATCH)),
    ("decode counted another prompt", 300, replace(ALONE, prompt_tokens=1), MOVED, Result(kp.PROMPT_MISMATCH)),
    ("nothing moved", 300, ALONE, replace(MOVED, bytes=0.0, computed=300.0), Result(kp.RECOMPUTED)),
    ("no token came from elsewhere", 300, ALONE, Transfers(external=0.0), Result(kp.RECOMPUTED)),
    (
        "failed and computed, while others' KV moved",
        300,
        ALONE,
        replace(MOVED, failed=1.0, computed=300.0),
        Result(kp.RECOMPUTED),
    ),
    ("another's transfer failed", 300, ALONE, replace(MOVED, failed=1.0), Result(bytes=1000.0)),
    ("another's prompt was computed", 300, ALONE, replace(MOVED, computed=900.0), Result(bytes=1000.0)),
    ("another answer", 300, out("x", "y", "z"), MOVED, Result(kp.WRONG_ANSWER)),
]


@pytest.mark.parametrize(("prefilled", "with_kv", "moved", "want"), [c[1:] for c in JUDGED], ids=[c[0] for c in JUDGED])
def test_result(prefilled: int | None, with_kv: Output, moved: Transfers, want: Result) -> None:
    assert judge(ALONE, prefilled, with_kv, moved) == want
    assert want.proved == (not want.reason)


def test_texts_that_differ_without_log_probabilities_prove_nothing() -> None:
    result = judge(Output(300, "abc"), 300, Output(300, "abd"), MOVED)
    assert not result.conclusive
    assert not result.proved


def test_a_canary_is_the_same_prompt_with_a_salt_of_its_own_in_both_requests() -> None:
    request = canary_request("salt", logprobs=True)
    prefill, decode = prefill_body(request, "m"), decode_body(request, {"x": 1}, "m", assemble=False)
    for field in ("prompt", "cache_salt"):
        assert prefill[field] == decode[field]
    assert (prefill["max_tokens"], decode["max_tokens"], decode["temperature"]) == (1, 8, 0)
    assert "stream" not in decode
    assert "logprobs" not in canary_request("salt", logprobs=False).body
    assert len(PROMPT.split()) == DIGITS > 2 * 128, "more than two of the largest blocks, if a digit is a token"
    assert len(PROMPT) < 600, "few enough for any engine, if a character is a token"


def test_the_counters_of_a_recorded_engine() -> None:
    page = (EXPOSITIONS / "vllm-0.32-decode.txt").read_bytes()
    found = read_transfers(page)
    assert found.bytes is not None
    assert found.bytes > 0
    assert found.failed == 0
    assert found.external is not None
    assert found.computed is not None
    assert found.external > 0
    assert read_transfers(b"") == UNKNOWN
    assert read_transfers(page + page).bytes == 2 * found.bytes, "of all engines behind the port"
    assert found.since(found) == Transfers(0.0, 0.0, 0.0, 0.0)
    assert found.since(UNKNOWN) == UNKNOWN


ANSWERS: list[tuple[dict[str, Any], Output]] = [
    ({"choices": [{"text": "ab"}]}, Output(None, "ab")),
    (
        {
            "choices": [
                {
                    "text": "a",
                    "logprobs": {
                        "tokens": ["token_id:1"],
                        "token_logprobs": [-0.5],
                        "top_logprobs": [{"token_id:1": -0.5}],
                    },
                }
            ],
            "usage": {"prompt_tokens": 3},
        },
        Output(3, "a", ("token_id:1",), (-0.5,), ({"token_id:1": -0.5},)),
    ),
    ({"choices": [{"text": "a", "logprobs": {"tokens": ["x"], "token_logprobs": []}}]}, Output(None, "a")),
]


@pytest.mark.parametrize(("body", "want"), ANSWERS)
def test_an_answer_is_read(body: dict[str, Any], want: Output) -> None:
    assert read_output(body) == want


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": ["x"]}])
def test_what_is_no_completion_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no choices"):
        read_output(body)


def test_an_engine_that_makes_no_step_shows_the_same_samples() -> None:
    page = (EXPOSITIONS / "vllm-0.32-prefill.txt").read_bytes()
    assert len(read_progress(page)) == 4
    assert read_progress(page) != read_progress(
        page.replace(b"vllm:kv_cache_usage_perc{", b"vllm:kv_cache_usage_perc{x")
    )
    assert read_progress(b"") == ()
