"""Answers that are passed through reach the client byte for byte, but for what a client must not see."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.router.conftest import CHAT, COMPLETION, RouterFactory
from tests.runtime.router.fake_engine import FINGERPRINT, FakeEngine, pair

USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "fields",
    [{"stream": True, **USAGE}, {"logprobs": 1}],
    ids=["stream", "answer of a shape that is not assembled"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_answer_that_is_passed_through_keeps_every_byte(
    router: RouterFactory, path: str, fields: dict[str, Any]
) -> None:
    """The engine writes JSON as no serialiser does, so that an answer that was parsed and written again differs."""
    d = FakeEngine("decode", "d0", separators=(" , ", " :  "), tokens=("Hé", "l\U0001f600", "\n\n", '"'))
    async with router(d) as r:
        reply = await r.post(path, {**(CHAT if "chat" in path else COMPLETION), **fields})
    assert reply.status == 200
    assert reply.text.encode() == bytes(d.sent)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_keeps_every_byte_but_the_usage_that_only_the_router_asked_for(
    router: RouterFactory, path: str
) -> None:
    d = FakeEngine("decode", "d0", separators=(" , ", " :  "))
    async with router(d) as r:
        reply = await r.post(path, {**(CHAT if "chat" in path else COMPLETION), "stream": True})
    *tokens, last, usage, done = bytes(d.sent).split(b"\n\n")[:-1]
    assert b'"usage"' in usage
    stamped = last[:-1] + f',"system_fingerprint":"{FINGERPRINT}"}}'.encode()
    assert reply.text.encode() == b"".join(event + b"\n\n" for event in (*tokens, stamped, done))


async def test_internal_addresses_are_not_shown_to_clients(router: RouterFactory) -> None:
    p, d = pair()
    d.faults.append("leak_kv")
    async with router(p, d) as r:
        reply = await r.complete(logprobs=1)
    assert reply.json["kv_transfer_params"] is None
    assert "10.0.0.9" not in reply.text
