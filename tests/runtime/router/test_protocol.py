"""Bodies: what is eligible for a prefill request, what is added and stripped, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.errors import ApiError
from phasewise_runtime.router.protocol import Endpoint, Request

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Request:
    body = {"model": "m", "messages": MESSAGES, **fields}
    return proto.read_request(Endpoint.CHAT, body, models=("m",))


def complete(**fields: Any) -> Request:
    body = {"model": "m", "prompt": "p", **fields}
    return proto.read_request(Endpoint.COMPLETIONS, body, models=("m",))


@pytest.mark.parametrize(
    ("fields", "decode_only"),
    [
        ({}, None),
        ({"n": 1}, None),
        ({"n": None}, None),
        ({"n": 2}, "several_choices"),
        ({"prompt": ["a"]}, None),
        ({"prompt": [[1, 2]]}, None),
        ({"prompt": [1, 2]}, None),
        ({"prompt": ["a", "b"]}, "several_prompts"),
        ({"prompt": None, "prompt_embeds": "x"}, None),
        ({"prompt_embeds": "x"}, "several_prompts"),
        ({"prompt_embeds": ["x"]}, "several_prompts"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"echo": True}, None),
        ({"echo": True, "logprobs": 0}, "prompt_logprobs"),
        ({"logprobs": 1}, None),
        ({"use_beam_search": True, "n": 2}, "beam_search"),
        ({"max_tokens": 0, "echo": True}, "no_generation"),
        ({"truncate_prompt_tokens": 5}, None),
        ({"truncate_prompt_tokens": None}, None),
        ({"truncate_prompt_tokens": -1}, "truncated_prompt"),
        ({"truncate_prompt_tokens": "-1"}, "truncated_prompt"),
        ({"truncate_prompt_tokens": -1.0}, "truncated_prompt"),
    ],
)
def test_which_requests_are_decode_only(fields: dict[str, Any], decode_only: str | None) -> None:
    assert complete(**fields).decode_only == decode_only


def test_an_echo_in_a_chat_is_decode_only() -> None:
    assert chat(echo=True).decode_only == "prompt_logprobs"
    assert chat(echo=False).decode_only is None


PREFILL: dict[str, Any] = {
    "stream": False,
    "max_tokens": 1,
    "temperature": 0,
    "ignore_eos": True,
    "kv_transfer_params": dict(proto.PREFILL_KV_PARAMS),
}
OF_THE_OUTPUT: dict[str, Any] = {
    "max_tokens": 50,
    "max_completion_tokens": 40,
    "min_tokens": 5,
    "ignore_eos": False,
    "seed": 7,
    "n": 1,
    "temperature": 0.7,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "best_of": 1,
    "length_penalty": 2,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 2,
    "logit_bias": {"5": 3},
    "stop": ["a"],
    "stop_token_ids": [5],
    "bad_words": ["b"],
    "allowed_token_ids": [5],
    "logprobs": 2,
    "structured_outputs": {"regex": "a"},
    "return_token_ids": True,
    "skip_special_tokens": False,
    "stream": True,
    "stream_options": {"include_usage": True},
    "stream_interval": 4,
}
OF_THE_PROMPT: dict[str, Any] = {
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "documents": [],
    "chat_template": "t",
    "chat_template_kwargs": {"a": 1},
    "add_generation_prompt": False,
    "continue_final_message": True,
    "add_special_tokens": True,
    "truncate_prompt_tokens": 5,
    "truncation_side": "left",
    "priority": 1,
    "cache_salt": "s",
    "mm_processor_kwargs": {},
    "media_io_kwargs": {},
    "reasoning_effort": "low",
    "user": "u",
}


@pytest.mark.parametrize("request_of", [chat, complete])
def test_the_prefill_request_has_what_shapes_the_prompt_and_no_sampling(request_of: Any) -> None:
    sent = prompt_of(request_of)
    assert proto.prefill_body(request_of(**OF_THE_OUTPUT, **OF_THE_PROMPT), "m") == {**sent, **OF_THE_PROMPT, **PREFILL}


def prompt_of(request_of: Any) -> dict[str, Any]:
    return {"model": "m", **({"messages": MESSAGES} if request_of is chat else {"prompt": "p"})}


def test_chat_templates_may_write_the_response_format_into_the_prompt_completions_cannot() -> None:
    given = {"response_format": {"type": "json_object"}}
    assert proto.prefill_body(chat(**given), "m") == {**prompt_of(chat), **given, **PREFILL}
    assert proto.prefill_body(complete(**given), "m") == {**prompt_of(complete), **PREFILL}


@pytest.mark.parametrize(
    ("fields", "assemble", "change"),
    [
        ({}, False, {}),
        ({}, True, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": True}, False, {"stream_options": {"include_usage": True}}),
        ({"stream": True, "stream_options": None}, False, {"stream_options": {"include_usage": True}}),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True, "x": 1}},
            False,
            {"stream_options": {"include_usage": True, "x": 1}},
        ),
        ({"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}, False, {}),
        ({"stream": True, "stream_options": "odd"}, False, {}),
        ({"stream": True, "n": 2}, False, {}),
    ],
)
def test_decode_body(fields: dict[str, Any], assemble: bool, change: dict[str, Any]) -> None:
    sent = {"model": "m", "messages": MESSAGES, **fields}
    kv = {"remote_host": "h"}
    got = proto.decode_body(chat(**fields), kv, "m", assemble=assemble)
    assert got == {**sent, **change, "kv_transfer_params": kv}
    assert "kv_transfer_params" not in proto.decode_body(chat(**fields), None, "m", assemble=assemble)


def test_each_engine_is_asked_by_its_own_name_for_the_model() -> None:
    request = chat()
    assert proto.prefill_body(request, "old")["model"] == "old"
    assert proto.decode_body(request, None, "new", assemble=False)["model"] == "new"
    assert request.body["model"] == "m", "the next attempt may go to pods of other names"


def test_the_names_of_all_pods_may_be_asked_for_and_no_others() -> None:
    for name in ("new", "old"):
        proto.check_model(name, ("new", "old"))
    with pytest.raises(ApiError, match="'other' does not exist; this service serves 'new' and 'old'"):
        proto.check_model("other", ("new", "old"))


@pytest.mark.parametrize(
    ("fields", "assembled"),
    [
        ({}, True),
        ({"temperature": 0, "max_tokens": 5, "stop": ["a"], "seed": 1}, True),
        ({"stream": True}, False),
        ({"n": 2}, False),
        ({"tools": [{}]}, False),
        ({"logprobs": True}, False),
        ({"response_format": {}}, False),
        ({"stream_options": {}}, False),
        ({"anything_else": 1}, False),
    ],
)
def test_which_answers_may_be_assembled(fields: dict[str, Any], assembled: bool) -> None:
    assert chat(**fields).assemble == assembled


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OURS = {
    *("model", "messages", "stream", "tools", "vllm_xargs", *proto.STRIPPED_FROM_CLIENT),
    *(*proto.PREFILL_SAMPLING, *proto.PREFILL_DROPPED),
}


@given(st.dictionaries(st.text(max_size=12).filter(lambda k: k not in OURS), json_values, max_size=5))
def test_every_other_field_reaches_prefill_and_decode_as_it_was(fields: dict[str, Any]) -> None:
    raw = json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()
    request = proto.read_request(Endpoint.CHAT, proto.parse_body(raw), models=("m",))
    for body in (proto.prefill_body(request, "m"), proto.decode_body(request, {}, "m", assemble=False)):
        sent = json.loads(proto.encode(body))
        assert {k: sent[k] for k in fields} == fields


def test_a_lone_surrogate_stays_what_it_was() -> None:
    assert rb"\ud800" in proto.encode(proto.parse_body(b'{"prompt": "\\ud800"}'))


def test_clients_cannot_name_hosts() -> None:
    request = chat(
        kv_transfer_params={"remote_host": "x"}, ec_transfer_params={}, vllm_xargs={"kv_transfer_params": "x"}
    )
    assert request.body == {"model": "m", "messages": MESSAGES, "vllm_xargs": {}}


BAD: list[tuple[bytes, int, str]] = [
    (b"", 400, "not valid JSON"),
    (b"{", 400, "not valid JSON"),
    (b"\xff", 400, "not valid JSON"),
    (b"[" * 100000, 400, "not valid JSON"),
    (b'{"temperature": NaN}', 400, "NaN is not JSON"),
    (b"[]", 400, "not a JSON object"),
    (b'{"model": 5, "messages": [1]}', 400, "must be a string"),
    (b'{"model": "gpt", "messages": [1]}', 404, "serves 'm'"),
    (b'{"model": "m"}', 400, "'messages' is missing"),
    (b'{"model": "m", "messages": []}', 400, "'messages' is missing"),
    (b'{"model": "m", "messages": "x"}', 400, "'messages' is missing"),
    (b'{"model": "m", "messages": [1], "stream": "yes"}', 400, "'stream' must be"),
]


@pytest.mark.parametrize(("raw", "status", "says"), BAD)
def test_bad_requests_are_refused_with_what_to_write(raw: bytes, status: int, says: str) -> None:
    with pytest.raises(ApiError) as e:
        proto.read_request(Endpoint.CHAT, proto.parse_body(raw), models=("m",))
    assert e.value.status == status
    assert says in e.value.message


@pytest.mark.parametrize("prompt", [None, "", []])
def test_a_completion_needs_a_prompt(prompt: Any) -> None:
    with pytest.raises(ApiError, match="'prompt' is missing"):
        complete(prompt=prompt)


@pytest.mark.parametrize(
    ("raw", "kv", "aborted"),
    [
        (b'{"choices": [{"finish_reason": "length"}], "kv_transfer_params": {"a": 1}}', {"a": 1}, False),
        (b'{"choices": [{"finish_reason": "abort"}], "kv_transfer_params": null}', None, True),
        (b'{"choices": [{"finish_reason": "length"}], "kv_transfer_params": {}}', None, False),
        (b'{"choices": []}', None, False),
    ],
)
def test_reading_an_answer(raw: bytes, kv: Any, aborted: bool) -> None:
    answer = proto.read_answer(raw)
    assert (answer.kv_params, answer.aborted) == (kv, aborted)


@pytest.mark.parametrize("raw", [b"", b"[]", b"<html>", b"{}"])
def test_an_answer_that_cannot_be_read(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        proto.read_answer(raw)


def test_endpoints_have_a_label() -> None:
    assert [e.label for e in Endpoint] == ["chat", "completions"]
