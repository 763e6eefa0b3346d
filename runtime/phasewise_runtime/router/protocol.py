"""vLLM's prefill/decode protocol over the OpenAI API. Pure: bodies in, bodies out.

The KV fields are those of vLLM's NixlConnector, as of 0.32. The prefill request carries the fields that vLLM's example
proxy sends (tests/v1/kv_connector/nixl_integration/toy_proxy_server.py). Its answer has the parameters that the
connector's `request_finished` made; the decode request carries them unread.

The fields that are added to or taken from a client's request are listed here, and those of sampling in `parameters`;
every other field reaches the engine with the value the client gave it. So all that shapes the prompt is equal in the
prefill and the decode request: from different prompts decode would take KV at wrong positions, without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn, cast

from phasewise_runtime.router import parameters
from phasewise_runtime.router.errors import ApiError
from phasewise_runtime.router.model_names import renamed

Body = dict[str, Any]


class Endpoint(str, Enum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"

    @property
    def label(self) -> str:
        return "chat" if self is Endpoint.CHAT else "completions"


# --- fields added and stripped -----------------------------------------------------------------------------
KV_PARAMS: Final = "kv_transfer_params"
STRIPPED_FROM_CLIENT: Final = (KV_PARAMS, "ec_transfer_params")
"""A client must not be able to name hosts that an engine then connects to; nor through `vllm_xargs`."""
XARGS: Final = "vllm_xargs"
PREFILL_DROPPED: Final = parameters.SAMPLING | {"max_completion_tokens", "stream_options", "stream_interval"}
"""The prefill request needs no sampling, and does not stream. /v1/completions ignores `max_completion_tokens`."""
PREFILL_SAMPLING: Final[Mapping[str, Any]] = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": False}
"""The least that vLLM computes. It keeps the KV only of a request that ends by its length, not by a stop token."""
PREFILL_KV_PARAMS: Final[Mapping[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

# --- why a request is decode-only --------------------------------------------------------------------------
SEVERAL_CHOICES: Final = "several_choices"
SEVERAL_PROMPTS: Final = "several_prompts"
PROMPT_LOGPROBS: Final = "prompt_logprobs"
BEAM_SEARCH: Final = "beam_search"
NO_GENERATION: Final = "no_generation"
TRUNCATED_PROMPT: Final = "truncated_prompt"

# --- why the latency of a request is not measured ----------------------------------------------------------
SHAPE: Final = "shape"
"""A non-streaming request with fields whose answer only the engine can assemble."""

_ASSEMBLED: Final = frozenset(
    (
        *("model", "messages", "prompt", "stream", "n", "user", "metadata", "store"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "bad_words", "allowed_token_ids"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "priority", "cache_salt"),
        *("request_id", "session_id", "skip_special_tokens", "spaces_between_special_tokens"),
        *("include_stop_str_in_output", "truncate_prompt_tokens", "truncation_side", "add_special_tokens"),
        *("add_generation_prompt", "chat_template", "chat_template_kwargs"),
    )
)
"""Fields with which a non-streaming answer can be assembled from a stream without loss; any other passes through."""


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request, checked as far as the router needs it."""

    endpoint: Endpoint
    body: Body
    stream: bool
    decode_only: str | None
    """Why it is decode-only; None where it is prefilled by a prefill pod."""
    assemble: bool
    """Non-streaming, but streamed upstream so that TTFT and ITL are measured."""
    ask_usage: bool
    """The router asks for the usage that the client did not ask for, and takes it out of the answer."""


def parse_body(raw: bytes) -> Body:
    """Parse a JSON object; ApiError says what is wrong with it."""
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise ApiError(400, f"The request body is not valid JSON: {e}. Send one JSON object.") from e
    if not isinstance(value, dict):
        raise ApiError(400, 'The request body is not a JSON object: send one, such as {"model": …}.')
    return cast("Body", value)


def read_request(endpoint: Endpoint, body: Body, *, models: Sequence[str]) -> Request:
    """Check a client's body and decide how it is sent to the engines. `models`: the names that it may ask for."""
    check_model(body.get("model"), models)
    _check_input(endpoint, body)
    stripped = _strip(body)
    stream = _check_stream(stripped)
    parameters.check(stripped, chat=endpoint is Endpoint.CHAT)
    single = stripped.get("n") in (None, 1) and not _several_prompts(stripped)
    return Request(
        endpoint=endpoint,
        body=stripped,
        stream=stream,
        decode_only=_decode_only(endpoint, stripped),
        assemble=not stream and single and _ASSEMBLED.issuperset(stripped) and stripped.get("max_tokens") != 0,
        ask_usage=single and not _wants_usage(stripped),
    )


def check_model(given: object, models: Sequence[str]) -> None:
    """ApiError where a client asks for another model than these; None asks for whatever is served."""
    if given is not None and not isinstance(given, str):
        raise ApiError(400, f"'model' must be a string: write \"{models[0]}\".", param="model")
    if given is not None and given not in models:
        served = " and ".join(f"'{name}'" for name in models)
        message = f"The model '{given}' does not exist; this service serves {served}."
        raise ApiError(404, message, param="model", code="model_not_found")


def prefill_body(request: Request, model: str) -> Body:
    """The body of the prefill request: the same request for one token, its KV kept for a decode pod.

    `model` is the engine's name for the model, as for `decode_body`."""
    dropped = PREFILL_DROPPED if request.endpoint is Endpoint.CHAT else PREFILL_DROPPED | {"response_format"}
    body = {k: v for k, v in renamed(request.body, model).items() if k not in dropped}
    return {**body, **PREFILL_SAMPLING, KV_PARAMS: dict(PREFILL_KV_PARAMS)}


def decode_body(request: Request, kv_params: Mapping[str, Any] | None, model: str, *, assemble: bool) -> Body:
    """The body of the decode request; with no `kv_params` the decode pod does the prefill as well."""
    body = renamed(request.body, model)
    streamed = request.stream or assemble
    if assemble:
        body["stream"] = True
    if streamed and request.ask_usage and isinstance(body.get("stream_options") or {}, dict):
        given = cast("Body", body.get("stream_options") or {})
        body["stream_options"] = {k: v for k, v in given.items() if k != "continuous_usage_stats"}
        body["stream_options"]["include_usage"] = True
    if kv_params is not None:
        body[KV_PARAMS] = dict(kv_params)
    return body


def encode(body: Body) -> bytes:
    """JSON in ASCII, so that lone surrogates that a client escaped stay unchanged."""
    try:
        return json.dumps(body, separators=(",", ":")).encode()
    except RecursionError as e:
        # Some depth less than what can be read.
        raise ApiError(400, "The request body is nested too deeply: send it with fewer levels.") from e


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of an engine's JSON answer that the router reads."""

    body: Body
    kv_params: Mapping[str, Any] | None
    aborted: bool


def read_answer(raw: bytes) -> Answer:
    """Read a non-streaming answer; ValueError where it is no JSON object."""
    value = json.loads(raw)
    body = cast("Body", value if isinstance(value, dict) else {})
    if not body:
        raise ValueError("the engine's answer is not a JSON object")
    params = body.get(KV_PARAMS)
    choices = cast("list[Any]", body.get("choices") or [])
    return Answer(
        body=body,
        kv_params=cast("Body", params) if isinstance(params, dict) and params else None,
        aborted=any(isinstance(c, dict) and cast("Body", c).get("finish_reason") == "abort" for c in choices),
    )


def prompt_tokens(usage: Any) -> int | None:
    """The prompt's tokens in the `usage` of an answer."""
    tokens = cast("Body", usage).get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else None


def _check_input(endpoint: Endpoint, body: Body) -> None:
    if endpoint is Endpoint.CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ApiError(400, "'messages' is missing: give a non-empty list of messages.", param="messages")
    elif body.get("prompt") in (None, "", []) and not body.get("prompt_embeds"):
        raise ApiError(400, "'prompt' is missing: give a non-empty prompt.", param="prompt")


def _check_stream(body: Body) -> bool:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ApiError(400, "'stream' must be true or false.", param="stream")
    return bool(stream)


def _strip(body: Body) -> Body:
    stripped = {k: v for k, v in body.items() if k not in STRIPPED_FROM_CLIENT}
    xargs = stripped.get(XARGS)
    if isinstance(xargs, dict):
        kept = {k: v for k, v in cast("Body", xargs).items() if k not in STRIPPED_FROM_CLIENT}
        stripped[XARGS] = kept
    return stripped


def _decode_only(endpoint: Endpoint, body: Body) -> str | None:
    if body.get("use_beam_search"):
        return BEAM_SEARCH
    if body.get("n") not in (None, 1):
        return SEVERAL_CHOICES
    if _several_prompts(body):
        return SEVERAL_PROMPTS
    # vLLM computes log probabilities of the prompt for an echo with logprobs, and for any echo in a chat.
    echoed = body.get("echo") and (endpoint is Endpoint.CHAT or body.get("logprobs") is not None)
    if body.get("prompt_logprobs") is not None or echoed:
        return PROMPT_LOGPROBS
    if body.get("max_tokens") == 0 or body.get("max_completion_tokens") == 0:
        return NO_GENERATION
    return TRUNCATED_PROMPT if parameters.truncates_by_output(body) else None


def _several_prompts(body: Body) -> bool:
    embeds = body.get("prompt_embeds")
    if isinstance(embeds, list):
        return True
    prompt = body.get("prompt")
    if not isinstance(prompt, list):
        return bool(embeds) and bool(prompt)
    items = cast("list[Any]", prompt)
    return len(items) > 1 and not all(isinstance(i, int) for i in items)


def _wants_usage(body: Body) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(cast("Body", options).get("include_usage"))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
