"""Answers that are not completions: errors in one vocabulary, health, the list of models."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import pair
from tests.runtime.router.faults import complete, four, many
from tests.runtime.waiting import until

from phasewise_runtime.router.errors import ApiError, of_engine
from phasewise_runtime.router.protocol import Body, encode, parse_body

ENGINE_ERRORS: list[tuple[int, bytes, dict[str, Any]]] = [
    (
        400,
        b'{"error": {"message": "too long", "type": "Bad Request", "param": "prompt", "code": 400}}',
        {"message": "too long", "type": "invalid_request_error", "param": "prompt", "code": None},
    ),
    (
        404,
        b'{"error": {"message": "no", "type": "NotFoundError", "param": null, "code": "model_not_found"}}',
        {"message": "no", "type": "invalid_request_error", "param": None, "code": "model_not_found"},
    ),
    (
        422,
        b'{"detail": "Unprocessable"}',
        {
            "message": "The engine refused this request with status 422.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        },
    ),
    (
        500,
        b'{"error": {"message": "x. See stack trace (above) for y", "code": 500}}',
        {"message": "The engine failed on this request.", "type": "engine_error", "param": None, "code": None},
    ),
    (
        503,
        b"<html>",
        {
            "message": "The engine failed on this request.",
            "type": "service_unavailable_error",
            "param": None,
            "code": None,
        },
    ),
]


@pytest.mark.parametrize(("status", "raw", "error"), ENGINE_ERRORS)
def test_an_engines_error_is_passed_on_in_the_words_of_the_routers_own(
    status: int, raw: bytes, error: dict[str, Any]
) -> None:
    passed_on = of_engine(status, raw)
    assert (passed_on.status, passed_on.body()) == (status, {"error": error})


async def test_health_on_the_service_port_answers_as_the_readiness_probe_and_needs_no_key(
    router: RouterFactory, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("secret")
    async with router(*pair(), api_keys_dir=tmp_path, settle_seconds=0.3) as r:
        assert (await r.get("/health")).status == 200
        assert (await r.get("/v1/models")).status == 401
        ending = asyncio.create_task(r.server.drain())
        await until(lambda: r.server.not_ready() is not None)
        reply = await r.get("/health")
        await ending
    assert (reply.status, reply.text) == (503, "shutting down\n")


async def test_models_may_be_listed_with_a_slash_at_the_end(router: RouterFactory) -> None:
    async with router(*pair()) as r:
        assert (await r.get("/v1/models/")).json == (await r.get("/v1/models")).json


@pytest.mark.parametrize("status", ["307", "401", "404"])
async def test_an_engine_that_is_set_up_wrong_is_at_fault_not_the_request(router: RouterFactory, status: str) -> None:
    engines = four()
    engines[0].always = status
    async with router(*engines) as r:
        assert all(complete(reply) for reply in await many(r, 12))
        assert r.metric("ejections_total", pod="p0", reason=f"status_{status}") == 1
        assert r.metric("decode_only_total") == 0
        for engine in engines[2:]:
            engine.always = status
        reply = await r.chat()
    assert (reply.status, reply.json["error"]["code"]) == (502, f"status_{status}")


async def test_a_body_that_is_not_in_its_encoding_is_refused(router: RouterFactory) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with (
        router(*pair()) as r,
        r.session.post(f"{r.url}/v1/chat/completions", data=b'{"model": "tiny"}', headers=headers) as response,
    ):
        assert response.status == 400
        assert "gzip" in (await response.json())["error"]["message"]


def test_a_body_that_is_nested_too_deeply_is_refused_however_deep_it_is() -> None:
    """The body is written further down the stack than it was read, so there are some that can only be read."""

    def written(body: Body, calls: int) -> bytes:
        return written(body, calls - 1) if calls else encode(body)

    refused: set[str] = set()
    for depth in range(sys.getrecursionlimit() - 300, sys.getrecursionlimit()):
        try:
            written(parse_body(b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"), 20)
        except ApiError as error:
            refused.add(error.message.partition(":")[0])
    assert refused == {"The request body is nested too deeply", "The request body is not valid JSON"}
