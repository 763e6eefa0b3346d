"""Writes of a leader, where the API server answers late: they end before the term does, and none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio import client
from tests.operator.conftest import until
from tests.operator.lease_server import Clock

from phasewise_operator import kube as kube_module
from phasewise_operator.connection import Connection
from phasewise_operator.kinds import DEPLOYMENT, Manifest
from phasewise_operator.kube import CALL_SECONDS, Kube
from phasewise_operator.kube_errors import KubeError, NotLeadingError

CHILD: Manifest = DEPLOYMENT.manifest("chat") | {"metadata": {"name": "chat", "namespace": "default"}}


class SlowServer:
    """Answers when `answer` is set. `begun`: method and `timeout` of each request; `done`: number carried out."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.begun: list[tuple[str, str]] = []
        self.done = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.begun.append((request.method, request.query.get("timeout", "")))
        await self.answer.wait()
        self.done += 1
        return web.json_response({})


@asynccontextmanager
async def serving(server: SlowServer) -> AsyncGenerator[Kube]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    kube = Kube(Connection(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")))
    try:
        yield kube
    finally:
        await kube.close()
        await runner.cleanup()


async def test_a_write_ends_here_and_on_the_server_when_another_may_take_over() -> None:
    server = SlowServer()
    async with serving(server) as kube:
        with pytest.raises(KubeError, match="no answer") as caught:
            await kube.gated(lambda: 0.25).apply(CHILD)
    assert caught.value.status == 0
    assert server.begun == [("PATCH", "250ms")]
    assert server.done == 0


async def test_a_write_with_time_enough_has_the_usual_limit() -> None:
    server = SlowServer()
    server.answer.set()
    async with serving(server) as kube:
        await kube.gated(lambda: 15.0).delete(DEPLOYMENT, "default", "chat", "uid")
    assert server.begun == [("DELETE", f"{CALL_SECONDS * 1000:.0f}ms")]


async def test_a_write_that_could_not_end_in_time_is_not_begun() -> None:
    server, clock = SlowServer(), Clock()
    server.answer.set()
    ends = clock.now + 5
    async with serving(server) as kube:
        gated = kube.gated(lambda: ends - clock())
        await gated.apply(CHILD)
        clock.now = ends - 0.05
        with pytest.raises(NotLeadingError, match=r"PATCH .*/deployments/chat"):
            await gated.apply(CHILD)
        assert len(server.begun) == 1


async def test_a_write_whose_caller_is_cancelled_goes_on_and_is_awaited() -> None:
    server = SlowServer()
    async with serving(server) as kube:
        gated = kube.gated(lambda: 15.0)
        worker = asyncio.create_task(gated.apply(CHILD))
        await until("the write is in flight", lambda: server.begun)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        finishing = asyncio.create_task(gated.finish_writes())
        await asyncio.sleep(0)
        assert not finishing.done()
        server.answer.set()
        async with asyncio.timeout(5):
            await finishing
        assert server.done == 1


async def test_a_write_whose_caller_is_cancelled_still_counts_as_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "WRITES", 1)
    server = SlowServer()
    async with serving(server) as kube:
        cancelled = asyncio.create_task(kube.apply(CHILD))
        await until("the write is in flight", lambda: server.begun)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        following = asyncio.create_task(kube.apply(CHILD))
        await asyncio.sleep(0.2)
        assert len(server.begun) == 1
        server.answer.set()
        await following
    assert len(server.begun) == 2


async def test_a_read_goes_through_the_gate() -> None:
    server = SlowServer()
    server.answer.set()
    async with serving(server) as kube:
        assert await kube.gated(lambda: 0.0).get(DEPLOYMENT, "default", "chat") == {}
    assert server.begun == [("GET", "")]
