"""The parameters of a request: which of them only shape its output, and which values no engine takes. Pure.

The names and limits are those of vLLM's ChatCompletionRequest, CompletionRequest and SamplingParams, as of 0.32; the
messages are vLLM's where it has one. A value that is refused here costs no prefill. What passes here the engine checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, cast

from phasewise_runtime.router.errors import ApiError

SAMPLING: Final = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "watermarking", "n", "best_of", "length_penalty"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "repetition_detection"),
        *("logit_bias", "allowed_token_ids", "bad_words", "stop", "stop_token_ids", "include_stop_str_in_output"),
        *("min_tokens", "ignore_eos", "thinking_token_budget", "structured_outputs"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"),
        *("skip_special_tokens", "spaces_between_special_tokens", "routed_experts_prompt_start"),
        *("return_token_ids", "return_tokens_as_token_ids", "return_token_offsets", "return_prompt_text"),
    )
)
"""Parameters of the output alone. The prompt, and so its KV, is the same with and without them.

Not among them: `response_format` and `tool_choice`, which some chat templates write into the prompt.
"""


@dataclass(frozen=True, slots=True)
class _Limits:
    low: float
    high: float = inf
    text: str = ""
    integer: bool = False
    above_low: bool = False
    """`low` itself is not taken."""

    def allow(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above_low and value == self.low)


_LIMITS: Final[Mapping[str, _Limits]] = {
    "max_tokens": _Limits(-inf, integer=True),
    "max_completion_tokens": _Limits(-inf, integer=True),
    "n": _Limits(1, text="be at least 1", integer=True),
    "min_tokens": _Limits(0, text="be greater than or equal to 0", integer=True),
    "temperature": _Limits(0, 2, "be in [0, 2]"),
    "top_p": _Limits(0, 1, "be in (0, 1]", above_low=True),
    "min_p": _Limits(0, 1, "be in [0, 1]"),
    "top_k": _Limits(-1, text="be 0 (disable), or at least 1", integer=True),
    "presence_penalty": _Limits(-2, 2, "be in [-2, 2]"),
    "frequency_penalty": _Limits(-2, 2, "be in [-2, 2]"),
    "repetition_penalty": _Limits(0, text="be greater than zero", above_low=True),
    "top_logprobs": _Limits(-1, text="be a positive value or -1", integer=True),
    "seed": _Limits(-(2**63), 2**63 - 1, "fit in 64 bits", integer=True),
}


_CHAT_ONLY: Final = ("max_completion_tokens", "top_logprobs")
"""A completion has no such fields: its engine ignores them."""


def check(body: Mapping[str, Any], *, chat: bool) -> None:
    """ApiError 400 where a parameter has a value that the engine would refuse."""
    known = {name: limits for name, limits in _LIMITS.items() if chat or name not in _CHAT_ONLY}
    values = {name: _number(body, name, limits) for name, limits in known.items() if body.get(name) is not None}
    name = "max_completion_tokens" if "max_completion_tokens" in values else "max_tokens"
    longest = values.get(name)
    # A completion that is only an echo generates nothing.
    if longest is not None and longest < 1 and (chat or longest < 0 or not body.get("echo")):
        raise _refused(name, f"{name} must be at least 1, got {body[name]}.")
    if longest and values.get("min_tokens", 0) > longest:
        text = f"min_tokens must be less than or equal to {name}={body[name]}, got {body['min_tokens']}."
        raise _refused("min_tokens", text)
    if body.get("stream_options") and not body.get("stream"):
        raise _refused("stream_options", "Stream options can only be defined when `stream=True`.")
    if chat and values.get("top_logprobs") and not body.get("logprobs"):
        raise _refused("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
    if chat and body.get("tools") == []:
        text = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise _refused("tools", text)


def truncates_by_output(body: Mapping[str, Any]) -> bool:
    """How much of the prompt is cut off may depend on `max_tokens`, which the prefill request does not have."""
    given = body.get("truncate_prompt_tokens")
    return given is not None and not (type(given) is int and given >= 0)


def _number(body: Mapping[str, Any], name: str, limits: _Limits) -> float:
    given = body[name]
    try:
        value = _parsed(given)
    except (TypeError, ValueError):
        value = None
    if value is None or (limits.integer and value != value // 1):
        kind = "an integer" if limits.integer else "a number"
        raise _refused(name, f"{name} must be {kind}, got {repr(given)[:60]}.")
    if not limits.allow(value):
        raise _refused(name, f"{name} must {limits.text}, got {given}.")
    return value


def _parsed(given: Any) -> float:
    """As pydantic reads numbers: also from text."""
    if isinstance(given, str):
        return int(given) if given.strip().lstrip("+-").isdigit() else float(given)
    if not isinstance(given, int | float):
        raise TypeError
    return cast("float", given)


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)
