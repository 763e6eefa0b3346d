"""The operator's life: a term ends when anything that runs in it ends, and another begins."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import pytest
from tests.operator.conftest import until
from tests.operator.lease_server import LeaseServer

from phasewise_operator import leader, lease_thread
from phasewise_operator.kinds import INFERENCE_SERVICE, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError, NotLeadingError
from phasewise_operator.leader import Operator, first_to_end
from phasewise_operator.lease_thread import LeaseThread
from phasewise_operator.metrics import Metrics
from phasewise_operator.settings import Settings
from phasewise_operator.store import Store


class Server(LeaseServer):
    """Has the Lease; `crd_after`: how many questions for the CRD are answered with 404."""

    crd_after = 0

    def __init__(self) -> None:
        super().__init__()
        self.holders_at_finish: list[str] = []
        """Of the Lease, whenever writes in flight had been awaited."""

    def gated(self, _seconds_to_write: Callable[[], float]) -> Server:
        return self

    async def finish_writes(self) -> None:
        await asyncio.sleep(0.01)
        self.holders_at_finish += [lease["spec"]["holderIdentity"] for lease in self.leases.values()]

    async def call(self, method: str, path: str, **more: Any) -> Manifest:
        if path != f"/apis/{INFERENCE_SERVICE.api_version}":
            return await super().call(method, path, **more)
        self.crd_after -= 1
        if self.crd_after >= 0:
            raise KubeError(404, "NotFound", path)
        return {"resources": [{"name": INFERENCE_SERVICE.plural}]}


@dataclass(frozen=True)
class Terms(Operator):
    """What a leader does is left out: the first term ends with an error at once, the next ones last."""

    begun: list[float] = field(default_factory=list[float])

    async def _act(self, kube: Kube) -> None:
        self.begun.append(leading(self.metrics))
        if len(self.begun) == 1:
            raise KubeError(410, "Expired", "the watch has ended")
        await asyncio.Event().wait()


def leading(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("phasewise_operator_leading") or 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def terms(server: Server, **settings: Any) -> Terms:
    chosen = Settings(identity="a", retry_seconds=0.001, port=free_port(), **settings)

    async def connect() -> Kube:
        return cast("Kube", server)

    metrics = Metrics()
    lease = LeaseThread(chosen, metrics, connect)
    return Terms(chosen, cast("Kube", server), metrics, asyncio.Event(), lease)


@asynccontextmanager
async def living(operator: Terms) -> AsyncGenerator[None]:
    running = asyncio.create_task(operator.run())
    try:
        yield
    finally:
        operator.stop.set()
        async with asyncio.timeout(10):
            await running


async def test_a_term_that_ends_is_followed_by_another_and_the_lease_is_given_up_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader, "PAUSE_SECONDS", 0.001)
    server = Server()
    operator = terms(server)
    async with living(operator):
        await until("a second term", lambda: len(operator.begun) == 2)
    assert operator.begun == [1, 1]
    assert leading(operator.metrics) == 0
    assert server.stored["spec"]["holderIdentity"] == ""
    assert server.holders_at_finish == ["a", "a"], "writes in flight are awaited while the Lease is held"
    assert operator.lease.seconds_to_write() == 0, "nothing is written after the release"


async def test_the_lease_is_renewed_while_the_main_event_loop_is_blocked() -> None:
    server = Server()
    operator = terms(server)
    async with living(operator):
        await until("a term", lambda: operator.begun)
        before = server.version
        time.sleep(0.5)  # noqa: ASYNC251 - this is the block
        assert server.version > before + 5


async def test_an_operator_whose_loop_hangs_lets_the_lease_go_and_takes_it_again_when_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(leader, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(lease_thread, "HANG_SECONDS", 0.3)
    server = Server()
    operator = terms(server)
    async with living(operator):
        await until("a second term", lambda: len(operator.begun) == 2)
        time.sleep(0.6)  # noqa: ASYNC251
        assert operator.lease.seconds_to_write() == 0
        lives, text = operator.lease._health()
        assert (lives, text.startswith("the event loop has not run for")) == (False, True)
        after = server.version
        await until("a third term", lambda: len(operator.begun) == 3)
        assert server.version > after


async def test_the_probes_say_what_the_operator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "PAUSE_SECONDS", 0.001)
    operator = terms(Server())

    async def probe(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
        async with session.get(f"http://127.0.0.1:{operator.settings.port}{path}") as answer:
            return answer.status, (await answer.text()).strip()

    async with living(operator), aiohttp.ClientSession() as session:
        await until("a second term", lambda: len(operator.begun) == 2)
        assert await probe(session, "/livez") == (200, "leading")
        monkeypatch.setattr(lease_thread, "HANG_SECONDS", -1)
        status, text = await probe(session, "/livez")
        assert status == 500
        assert text.startswith("the event loop has not run for")


async def test_a_port_that_is_taken_ends_the_operator_with_an_error() -> None:
    operator = terms(Server())
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", operator.settings.port))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await operator.run()


async def test_a_crd_that_is_not_served_yet_is_waited_for() -> None:
    server = Server()
    server.crd_after = 2
    async with asyncio.timeout(5):
        await terms(server)._wait_for_crd(cast("Kube", server))
    assert server.crd_after == -1, "asked three times"


@pytest.mark.parametrize(
    ("error", "text"),
    [(None, ""), (ValueError("a defect"), "ValueError: a defect"), (NotLeadingError("PATCH /x"), "without the lease")],
)
async def test_the_first_task_to_end_ends_the_others_and_is_logged(
    error: Exception | None, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ends() -> None:
        if error:
            raise error

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    cancelled: list[bool] = []
    async with asyncio.timeout(5):
        await first_to_end(goes_on(), ends(), goes_on())
    assert cancelled == [True, True]
    assert text in caplog.text


async def test_who_stands_by_again_counts_no_services_and_keeps_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[weakref.ref[Store]] = []
    counts: list[float | None] = []
    operator = terms(Server())

    def services() -> float | None:
        return operator.metrics.registry.get_sample_value("phasewise_operator_services")

    class OneService:
        def __init__(self, _kube: Kube, store: Store, *_: object) -> None:
            store.put(INFERENCE_SERVICE, {"metadata": {"name": "chat", "namespace": "default", "uid": "u"}})
            stores.append(weakref.ref(store))

        async def run(self) -> None:
            counts.append(services())
            raise KubeError(410, "Expired", "the watch has ended")

    monkeypatch.setattr(leader, "Watches", OneService)
    await Operator._act(operator, operator.kube)
    assert (counts, services()) == ([1.0], 0.0)
    await until("the store is gone", lambda: gc.collect() >= 0 and stores[0]() is None)
