"""What the fake engine answers: errors as vLLM writes them, parts of events, and canaries."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ERROR = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
REFUSED = {"message": "max_tokens is too large", "type": "BadRequestError", "param": "max_tokens", "code": 400}
ENGINE_DEAD = {**ERROR, "message": "EngineCore encountered an issue. See stack trace (above) for the root cause."}
PROMPT_TOKENS = 559
"""Of a canary."""
TOKENS = tuple(f"token_id:{n}" for n in range(8))
BYTES = 1000
"""Moved for one KV transfer."""


def choice_of(token: str, *, chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0}
    choice |= {"delta": {"content": token}} if chat else {"text": token}
    return {**choice, "logprobs": None, "finish_reason": None}


def error_events(error: dict[str, Any]) -> bytes:
    """As vLLM writes it: with blanks, and with a [DONE] after it."""
    return f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n".encode()


def kv_params(engine: str) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine,
        "remote_block_ids": [[1, 2, 3]],
        "remote_request_id": uuid.uuid4().hex,
        "remote_host": "10.0.0.9",
        "remote_port": 5600,
        "tp_size": 1,
    }


@dataclass
class FakeKv:
    """An engine's KV connector, and what it answers to canaries."""

    fault: str | None = None
    """Of every canary; None is none."""
    bad_peers: dict[str, str] = field(default_factory=dict)
    """Faults of the KV of these prefill engines, for canaries and clients' requests: `hang`, `recompute`, `wrong`."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Closed: canaries wait for it."""
    canaries: list[dict[str, Any]] = field(default_factory=list)
    counted: bool = True
    """The engine exports its counters."""
    prompt_tokens: int = PROMPT_TOKENS
    logprobs: float = -1.0
    steps: Iterator[int] = field(default_factory=lambda: itertools.repeat(0))
    """What each look at the exposition finds: an engine that makes steps between."""
    moved: int = 0
    failed: int = 0
    external: int = 0
    computed: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    async def load(self, params: dict[str, Any], tokens: int) -> str | None:
        """Get the KV of a request; returns the fault of the path."""
        if not params.get("do_remote_prefill"):
            self.computed += 0 if params else tokens
            return None
        fault = self.bad_peers.get(params.get("remote_engine_id", ""))
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "recompute":
            self.computed += tokens
        else:
            self.external += tokens
            self.moved += BYTES
        return fault

    async def answer(self, name: str, body: dict[str, Any]) -> dict[str, Any] | int:
        """The answer to a canary, or the status of an error."""
        self.canaries.append(body)
        if self.fault == "slow":
            self.steps = itertools.count(1)
        params = body.get("kv_transfer_params") or {}
        await self.gate.wait()
        if self.fault in ("hang", "slow"):
            await asyncio.Event().wait()
        if self.fault and self.fault.isdigit():
            return int(self.fault)
        if self.fault == "no_logprobs" and "logprobs" in body:
            return 400
        fault = await self.load(params, self.prompt_tokens)
        if fault and fault.isdigit():
            return int(fault)
        tokens = ("token_id:99", *TOKENS[1:]) if fault == "wrong" else TOKENS
        logprobs = {
            "tokens": list(tokens),
            "token_logprobs": [self.logprobs] * len(tokens),
            "top_logprobs": [{t: self.logprobs} for t in tokens],
        }
        return {
            "choices": [{"index": 0, "text": "".join(tokens), "logprobs": logprobs if "logprobs" in body else None}],
            "usage": {"prompt_tokens": self.prompt_tokens},
            "kv_transfer_params": kv_params(name) if params.get("do_remote_decode") and self.fault != "no_kv" else None,
        }

    def exposition(self) -> str:
        of = 'engine="0",model_name="tiny"'
        return "\n".join(
            (
                f"vllm:nixl_bytes_transferred_sum{{{of}}} {float(self.moved)}",
                f"vllm:nixl_num_failed_transfers_total{{{of}}} {float(self.failed)}",
                f'vllm:prompt_tokens_by_source_total{{{of},source="local_compute"}} {float(self.computed)}',
                f'vllm:prompt_tokens_by_source_total{{{of},source="external_kv_transfer"}} {float(self.external)}',
                f"vllm:generation_tokens_total{{{of}}} {float(next(self.steps))}",
                "",
            )
        )
