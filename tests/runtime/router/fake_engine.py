"""A small engine on loopback that speaks vLLM's dialect of the OpenAI API, and fails on demand as vLLM does."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web
from tests.runtime.router.fake_answers import ENGINE_DEAD, ERROR, REFUSED, FakeKv, choice_of, error_events, kv_params

from phasewise_runtime.router.canary import REQUEST_ID
from phasewise_runtime.router.pods import Pod

MODEL = "tiny"
FINGERPRINT = "vllm-0.32.0-tp1"
MID_STREAM = frozenset(("die", "truncate", "mid_error", "mid_hang", "mid_crash", "engine_dead_event"))


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeEngine:
    role: str
    name: str
    fingerprint: str = "fp"
    model: str = MODEL
    aggregated: bool = False
    tokens: tuple[str, ...] = ("Hel", "lo", " wor", "ld")
    always: str | None = None
    """A fault of every request."""
    faults: deque[str] = field(default_factory=deque)
    """Faults of the next requests, one each; "ok" is none."""
    requests: list[Seen] = field(default_factory=list)
    aborted: int = 0
    ended: int = 0
    healthy: bool = True
    kv_seen: list[str] = field(default_factory=list)
    first_gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Closed: the first token waits for it."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Closed: the tokens after the first wait for it."""
    gap: float = 0.0
    prompt_tokens: int = 7
    separators: tuple[str, str] = (",", ":")
    """Of the JSON it writes."""
    sent: bytearray = field(default_factory=bytearray)
    """Every byte of its answers so far, event streams included."""
    kv: FakeKv = field(default_factory=FakeKv)
    stopped: bool = False
    """Nothing answers, as after SIGSTOP."""
    port: int = 0
    runner: web.AppRunner | None = None

    def __post_init__(self) -> None:
        self.first_gate.set()
        self.gate.set()

    def pod(self, **changes: Any) -> Pod:
        known: dict[str, Any] = {"uid": self.name, "name": self.name, "role": self.role, "address": "127.0.0.1"}
        known |= {"port": self.port, "fingerprint": self.fingerprint, "model": self.model, "ready": True}
        known |= {"aggregated": self.aggregated, "revision": "r1", **changes}
        return Pod(**known)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [s.body for s in self.requests]

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", partial(self._answer, chat=True))
        app.router.add_post("/v1/completions", partial(self._answer, chat=False))
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = self.runner.addresses[0][1]

    async def kill(self) -> None:
        """As SIGKILL looks from outside: connections break, new ones are refused."""
        if self.runner is None:
            return
        for connection in list(self.runner.server.connections if self.runner.server else ()):
            if connection.transport is not None:
                connection.transport.abort()
        runner, self.runner = self.runner, None
        await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.kv.exposition(), status=200 if self.kv.counted else 404)

    async def _health(self, _: web.Request) -> web.Response:
        if self.stopped:
            await asyncio.Event().wait()
        return web.Response(status=200 if self.healthy else 503)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.json()
        if self.stopped:
            await asyncio.Event().wait()
        if request.headers["X-Request-Id"].startswith(REQUEST_ID):
            answer = await self.kv.answer(self.name, body)
            return web.json_response(answer) if isinstance(answer, dict) else web.Response(status=answer)
        self.requests.append(Seen(request.path, dict(request.headers), body))
        fault = "404" if body.get("model", self.model) != self.model else self.always
        fault = self.faults.popleft() if self.faults else fault
        if (kv := body.get("kv_transfer_params") or {}).get("do_remote_prefill"):
            self.kv_seen.append(kv["remote_request_id"])
        try:
            await self.kv.load(kv, 300)
            if (early := await self._early_fault(request, fault)) is not None:
                return early
            if body.get("stream"):
                return await self._stream(request, body, fault, chat=chat)
            await self.first_gate.wait()
            return self._json(self.answer_to(body, fault, chat=chat))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.ended += 1

    async def _early_fault(self, request: web.Request, fault: str | None) -> web.StreamResponse | None:
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault == "crash":
            asyncio.get_running_loop().create_task(self.kill())
        if fault == "engine_dead":
            return self._json({"error": ENGINE_DEAD}, status=500)
        if fault in ("hang", "crash"):
            await asyncio.Event().wait()
        if fault and fault.isdigit():
            error = {**(REFUSED if fault == "400" else ERROR), "code": int(fault)}
            return self._json({"error": error}, status=int(fault), headers={"X-Engine": self.name})
        if fault == "garbage":
            return web.Response(text="<html>", content_type="application/json")
        return None

    def _json(self, value: dict[str, Any], **kwargs: Any) -> web.Response:
        body = json.dumps(value, separators=self.separators).encode()
        self.sent += body
        return web.Response(body=body, content_type="application/json", **kwargs)

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        self.sent += data
        await response.write(data)

    def _event(self, value: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(value, separators=self.separators).encode() + b"\n\n"

    def _usage(self, n: int) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens + n, "completion_tokens": n}

    def _kv_params(self, body: dict[str, Any], fault: str | None) -> dict[str, Any] | None:
        if fault == "leak_kv":
            return {"remote_host": "10.0.0.9"}
        if not (body.get("kv_transfer_params") or {}).get("do_remote_decode") or fault == "no_kv":
            return None
        return kv_params(self.name)

    def answer_to(self, body: dict[str, Any], fault: str | None = None, *, chat: bool) -> dict[str, Any]:
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(self.tokens)
        tokens = self.tokens[:limit]
        finish = "abort" if fault == "abort" else ("length" if limit <= len(self.tokens) else "stop")
        choice: dict[str, Any] = {"index": 0}
        if chat:
            choice["message"] = {
                "role": "assistant",
                "content": "".join(tokens),
                **dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning")),
            }
        else:
            choice["text"] = "".join(tokens)
        logprobs = {"tokens": list(tokens)} if body.get("logprobs") else None
        choice |= {"logprobs": logprobs, "finish_reason": finish, "stop_reason": None, "token_ids": None}
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if chat else "text_completion",
            "created": 1700000000,
            "model": self.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {**self._usage(len(tokens)), "prompt_tokens_details": None},
            "kv_transfer_params": self._kv_params(body, fault),
            "ec_transfer_params": None,
        }

    async def _stream(
        self, request: web.Request, body: dict[str, Any], fault: str | None, *, chat: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if not chat and fault in ("role_then_error", "role_then_die"):
            fault = "error_event" if fault == "role_then_error" else "die_before_first"
        if fault in ("error_event", "error_event_400"):
            await self._write(response, error_events(REFUSED if fault.endswith("400") else ERROR))
            return response
        sent = 0
        async for event in self._events(body, fault, chat=chat):
            if fault == "die_before_first" or (sent == 2 and fault in MID_STREAM):
                return await self._break(request, response, fault)
            await self._write(response, event)
            sent += 1
            if fault in ("role_then_error", "role_then_die"):
                await asyncio.sleep(0.03)
                return await self._break(request, response, "mid_error" if fault == "role_then_error" else "die")
        await self._write(response, b"data: [DONE]\n\n")
        if fault == "late_end":
            await asyncio.Event().wait()
        return response

    async def _break(self, request: web.Request, response: web.StreamResponse, fault: str) -> web.StreamResponse:
        if fault == "mid_error":
            await self._write(response, error_events(ERROR))
        elif fault == "engine_dead_event":
            await self._write(response, error_events(ENGINE_DEAD))
        elif fault == "mid_crash":
            await self.kill()
        elif fault == "mid_hang":
            await asyncio.Event().wait()
        elif fault != "truncate":
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _events(self, body: dict[str, Any], fault: str | None, *, chat: bool) -> AsyncIterator[bytes]:
        await self.first_gate.wait()
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 1700000000,
            "model": self.model,
        }
        options = body.get("stream_options") or {}
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(self.tokens)
        tokens = self.tokens[:limit]
        if chat:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            yield self._event({**head, "choices": [first]})
        if fault == "abort":
            await asyncio.sleep(0.03)  # so that the role arrives on its own
            yield self._event({**head, "choices": [choice_of("", chat=chat) | {"finish_reason": "abort"}]})
            return
        for i, token in enumerate(tokens):
            if i:
                await asyncio.sleep(self.gap)
                await self.gate.wait()
            choice = choice_of(token, chat=chat)
            event: dict[str, Any] = {**head, "choices": [choice]}
            if i == len(tokens) - 1:
                aborted = fault == "mid_abort"
                choice["finish_reason"] = "abort" if aborted else ("length" if limit <= len(self.tokens) else "stop")
                choice["stop_reason"] = None
                if not options.get("include_usage"):
                    event["system_fingerprint"] = FINGERPRINT
            if options.get("continuous_usage_stats"):
                event["usage"] = self._usage(1 + i)
            if fault == "reasoning" and chat:
                choice["delta"] = {"reasoning": token}
            yield self._event(event)
        if options.get("include_usage"):
            head |= {"choices": [], "system_fingerprint": FINGERPRINT}
            yield self._event({**head, "usage": self._usage(len(tokens))})


def pair(**fields: Any) -> tuple[FakeEngine, FakeEngine]:
    """A prefill pod, and a decode pod with these fields."""
    return FakeEngine("prefill", "p0"), FakeEngine("decode", "d0", **fields)


@asynccontextmanager
async def engines(*wanted: FakeEngine) -> AsyncGenerator[tuple[FakeEngine, ...], None]:
    for engine in wanted:
        await engine.start()
    try:
        yield wanted
    finally:
        for engine in wanted:
            await engine.kill()
