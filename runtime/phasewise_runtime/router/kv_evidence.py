"""A canary: a short completion by decode alone, and the same with KV of a prefill pod; what their answers prove. Pure.

The prompt is text that any tokenizer makes some hundred tokens of, and needs no chat template. Each request has a
`cache_salt` of its own, so that no prefix cache answers in place of the transfer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from phasewise_runtime.router import kv_paths
from phasewise_runtime.router.protocol import Body, Endpoint, Request, prompt_tokens

DIGITS: Final = 280
"""Of the prompt, with a blank between them. Each is at least one token, with its blank at most two: in all more than
two blocks of 128 tokens, and less than 600 tokens."""
PROMPT: Final = " ".join(str(i * i * 7 // 11 % 10) for i in range(DIGITS))
OUTPUT_TOKENS: Final = 8
LOGPROBS: Final = 2
TOLERANCE: Final = 0.5
"""Nats by which the log probability of a token may differ, where decode computed the prompt itself or got its KV. In
fp32 on one kind of CPU the answers are identical. In bf16 two numbers between 16 and 32, which logits often are, lie
0.125 apart, and kernels that add in another order (by batch, by where a prompt is cut) move a logit by a step or two,
and the normaliser as well. KV of another prompt moves it by whole nats."""


def canary_request(salt: str, *, logprobs: bool) -> Request:
    """The request of a canary; `salt` is used for no other one."""
    body: Body = {"prompt": PROMPT, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"cache_salt": salt, "return_tokens_as_token_ids": True}
    if logprobs:
        body["logprobs"] = LOGPROBS
    return Request(Endpoint.COMPLETIONS, body, stream=False, decode_only=None, assemble=False, ask_usage=False)


@dataclass(frozen=True, slots=True)
class Output:
    """An engine's answer to a canary: as many tokens as log probabilities, or none of either."""

    prompt_tokens: int | None
    text: str
    tokens: Sequence[str] = ()
    logprobs: Sequence[float] = ()
    """Of each token, in nats."""
    likely: Sequence[Mapping[str, float]] = ()
    """At each token: the log probabilities of the likeliest."""


def read_output(body: Body) -> Output:
    """Read an answer to a canary; ValueError where it is no completion."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("the answer has no choices")
    choice = cast("Body", choices[0])
    counted, text = prompt_tokens(body.get("usage")), str(choice.get("text", ""))
    given = choice.get("logprobs")
    if not isinstance(given, dict):
        return Output(counted, text)
    given = cast("Mapping[str, Any]", given)
    tokens, logprobs = given.get("tokens") or (), given.get("token_logprobs") or ()
    nothing: dict[str, float] = {}
    likely = given.get("top_logprobs") or [nothing for _ in tokens]
    if not len(tokens) == len(logprobs) == len(likely):
        return Output(counted, text)
    return Output(counted, text, tuple(tokens), tuple(x or 0.0 for x in logprobs), tuple(m or nothing for m in likely))


def answers_equal(alone: Output, with_kv: Output, tolerance: float = TOLERANCE) -> bool | None:
    """Whether the answer with KV is the one of decode alone; None where texts differ and nothing says by how much.

    Up to the first different token both have the same context, and their log probabilities must be close. There, each
    token must be about as likely as the other in both answers: two that are nearly equal may change places.
    """
    if alone.tokens and with_kv.tokens:
        mine = zip(alone.tokens, alone.logprobs, alone.likely, strict=True)
        others = zip(with_kv.tokens, with_kv.logprobs, with_kv.likely, strict=True)
        for (token, logprob, likely), (other, logprob_other, likely_other) in zip(mine, others, strict=False):
            if token != other:
                near = _about(likely.get(other), logprob, tolerance)
                return near and _about(likely_other.get(token), logprob_other, tolerance)
            if abs(logprob - logprob_other) > tolerance:
                return False
        return len(alone.tokens) == len(with_kv.tokens)
    return True if alone.text == with_kv.text else None


def _about(logprob: float | None, chosen: float, tolerance: float) -> bool:
    return logprob is not None and abs(logprob - chosen) <= tolerance


# --- what the connector moved ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Transfers:
    """Counters of a decode engine; None where it does not export them."""

    bytes: float | None = None
    """Moved by its connector. Of vLLM's connectors NIXL counts them."""
    failed: float | None = None
    external: float | None = None
    """Prompt tokens whose KV came from elsewhere."""
    computed: float | None = None
    """Prompt tokens that the engine computed."""

    def since(self, before: Transfers) -> Transfers:
        def grown(now: float | None, then: float | None) -> float | None:
            return None if now is None or then is None else now - then

        return Transfers(
            grown(self.bytes, before.bytes),
            grown(self.failed, before.failed),
            grown(self.external, before.external),
            grown(self.computed, before.computed),
        )

    @property
    def nothing_moved(self) -> bool:
        """By the better of the two counters that the engine has."""
        return (self.external if self.bytes is None else self.bytes) == 0


_SAMPLES = {
    "bytes": re.compile(rb"^vllm:nixl_bytes_transferred_sum(?:\{[^\n]*\})? (\S+)", re.MULTILINE),
    "failed": re.compile(rb"^vllm:nixl_num_failed_transfers_total(?:\{[^\n]*\})? (\S+)", re.MULTILINE),
    "external": re.compile(
        rb'^vllm:prompt_tokens_by_source_total\{[^\n]*source="external_kv_transfer"[^\n]*\} (\S+)', re.MULTILINE
    ),
    "computed": re.compile(
        rb'^vllm:prompt_tokens_by_source_total\{[^\n]*source="local_compute"[^\n]*\} (\S+)', re.MULTILINE
    ),
}
"""Of vLLM 0.32, one sample for each engine of the server."""


def read_transfers(exposition: bytes) -> Transfers:
    """Read an engine's /metrics. Only the few lines are parsed that matter: a router reads many of these pages."""
    found: dict[str, float | None] = {}
    for name, pattern in _SAMPLES.items():
        values = [float(value) for value in pattern.findall(exposition)]
        found[name] = sum(values) if values else None
    return Transfers(**found)


_PROGRESS = re.compile(
    rb"^(vllm:(?:prompt_tokens_total|generation_tokens_total|kv_cache_usage_perc|num_requests_running)[{ ].*)$",
    re.MULTILINE,
)


def read_progress(exposition: bytes) -> tuple[bytes, ...]:
    """Samples of an engine's /metrics of which each step of the engine that has work changes one; empty where it has
    none. Between steps, however slow, they stand still."""
    return tuple(_PROGRESS.findall(exposition))


# --- the result --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Result:
    """`reason` is empty where the path is proved; `conclusive` is false where nothing is known of it."""

    reason: str = ""
    conclusive: bool = True
    bytes: float | None = None
    """Moved by the connector meanwhile; None where the engine does not say."""

    @property
    def proved(self) -> bool:
        return self.conclusive and not self.reason


def judge(alone: Output, prefilled: int | None, with_kv: Output, moved: Transfers) -> Result:
    """What the answers of a canary prove. `prefilled`: the prompt's tokens, as the prefill engine counted them.

    Other requests may move KV meanwhile. So a transfer has also failed where failures were counted and the engine
    computed as many tokens as the prompt has: what it moved was for others.
    """
    counts = {n for n in (alone.prompt_tokens, prefilled, with_kv.prompt_tokens) if n is not None}
    if len(counts) > 1:
        return Result(kv_paths.PROMPT_MISMATCH)
    computed = moved.computed is not None and bool(counts) and moved.computed >= max(counts)
    if moved.nothing_moved or (moved.failed and computed):
        return Result(kv_paths.RECOMPUTED)
    equal = answers_equal(alone, with_kv)
    if equal is None:
        return Result("answers_not_comparable", conclusive=False, bytes=moved.bytes)
    return Result(bytes=moved.bytes) if equal else Result(kv_paths.WRONG_ANSWER)
