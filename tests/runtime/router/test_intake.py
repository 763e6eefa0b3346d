"""Request bodies: how large, how many at once, how slow, and that the end waits for them."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.heap import without_other_tests_objects
from tests.runtime.router.conftest import CHAT, SETTINGS, Router, RouterFactory
from tests.runtime.router.fake_engine import FakeEngine
from tests.runtime.waiting import until

from phasewise_runtime.router.protocol import parse_body

BODY = json.dumps(CHAT).encode()
JSON = {"Content-Type": "application/json"}


class Upload:
    """A client that sends the head and the start of its body, and the rest on `rest()`."""

    def __init__(self, r: Router, length: int = len(BODY)) -> None:
        self._r = r
        self._length = length

    async def __aenter__(self) -> Upload:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._r.server.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {self._length}\r\n"
        self._writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + BODY[:10])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def rest(self) -> None:
        self._writer.write(BODY[10:])

    async def answer(self) -> str:
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 5)
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        return (head + await self._reader.readexactly(length)).decode()


async def chunked(body: bytes) -> AsyncIterator[bytes]:
    yield body


@pytest.mark.parametrize("unit", [b"[[[0]]],", b'{"a":0},'])
def test_parsing_the_largest_body_holds_up_streams_for_two_seconds_at_most(unit: bytes) -> None:
    """In CPU time, so that other work on the machine does not count. Small lists are the slowest JSON for its size."""
    start, end = b'{"messages":[', b"0]}"
    body = start + unit * ((SETTINGS.max_body_bytes - len(start) - len(end)) // len(unit)) + end
    assert SETTINGS.max_body_bytes - len(unit) < len(body) <= SETTINGS.max_body_bytes

    def seconds() -> float:
        began = time.thread_time()
        parse_body(body)
        return time.thread_time() - began

    with without_other_tests_objects():
        assert any(seconds() < 2.0 for _ in range(3))


async def test_a_body_said_to_be_too_large_is_refused_before_it_is_read(router: RouterFactory) -> None:
    async with router(FakeEngine("decode", "d0")) as r, Upload(r, 5 * 2**20) as upload:
        assert " 413 " in await upload.answer()


@pytest.mark.parametrize(
    ("sent", "headers", "limit"),
    [
        (lambda: BODY, {}, 1.5 * len(BODY)),
        # A length that is not known counts as the largest.
        (lambda: chunked(BODY), {}, 1000),
        (lambda: gzip.compress(BODY), {"Content-Encoding": "gzip"}, 1000),
    ],
    ids=["length", "chunked", "compressed"],
)
async def test_bodies_beyond_what_fits_in_memory_together_are_refused_until_some_are_freed(
    router: RouterFactory, sent: Callable[[], Any], headers: dict[str, str], limit: float
) -> None:
    d = FakeEngine("decode", "d0")
    d.first_gate.clear()
    async with router(d, max_body_bytes=1000, held_body_bytes=int(limit)) as r:

        async def post() -> tuple[int, str | None]:
            url = f"{r.url}/v1/chat/completions"
            async with r.session.post(url, data=sent(), headers={**JSON, **headers}) as response:
                return response.status, response.headers.get("Retry-After")

        running = asyncio.create_task(r.chat())
        await until(lambda: d.requests)
        assert await asyncio.wait_for(post(), 5) == (429, "2")
        assert r.metric("requests_total", outcome="rejected", code="429") == 1
        d.first_gate.set()
        assert (await running).status == 200
        assert (await post())[0] == 200
        assert r.metric("body_bytes") == 0


async def test_an_upload_may_not_take_for_ever(router: RouterFactory) -> None:
    async with router(FakeEngine("decode", "d0"), upload_seconds=0.1) as r, Upload(r) as upload:
        answer = await upload.answer()
        assert " 408 " in answer
        assert "within 0.1 s" in answer
        assert r.metric("requests_total", outcome="client_error", code="408") == 1


async def test_a_client_that_goes_away_in_its_upload_holds_nothing(router: RouterFactory) -> None:
    async with router(FakeEngine("decode", "d0"), max_body_bytes=1000, held_body_bytes=len(BODY)) as r:
        async with Upload(r):
            await until(lambda: r.metric("body_bytes"))
        await until(lambda: not r.metric("body_bytes"))
        assert (await r.chat()).status == 200


async def test_the_end_waits_for_a_request_whose_body_is_still_being_read(router: RouterFactory) -> None:
    async with router(FakeEngine("decode", "d0")) as r, Upload(r) as upload:
        await until(lambda: r.metric("body_bytes"))
        drain = asyncio.create_task(r.server.drain())
        await until(lambda: r.server.not_ready() == "shutting down")
        done, _ = await asyncio.wait({drain}, timeout=0.1)
        assert not done
        await upload.rest()
        assert " 200 " in await upload.answer()
        await drain
