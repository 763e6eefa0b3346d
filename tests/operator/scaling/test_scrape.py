"""Scraping over HTTP, on loopback: each way in which a pod fails has its own reason and delays no other pod."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.heap import without_other_tests_objects
from tests.operator.scaling.signals.exposition import EXPOSITIONS, Router

from phasewise_operator.scaling import scrape
from phasewise_operator.scaling.scrape import ScrapeError, Scraper
from phasewise_operator.scaling.signals import families
from phasewise_operator.scaling.signals.exposition import parse
from phasewise_operator.scaling.signals.history import Scrape, ScrapeTarget
from phasewise_runtime import contract

ENGINE_METRICS = (EXPOSITIONS / "vllm-0.32-decode.txt").read_bytes()
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def http(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {size}", *headers])
    return head.encode() + b"\r\n\r\n" + body


def says(answer: bytes, *, then_closes: bool = False) -> Answer:
    async def respond(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        if then_closes:
            writer.close()

    return respond


async def never(_request: bytes, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


class Pods:
    """Servers on one port and several loopback addresses, as pods are. `connections`: how many were opened to each."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []

    async def start(self, address: str, answer: Answer) -> ScrapeTarget:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections[address] = self.connections.get(address, 0) + 1
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while request := await reader.readuntil(b"\r\n\r\n"):
                    await answer(request, writer)
            writer.close()

        server = await asyncio.start_server(connection, address, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        return ScrapeTarget(contract.DECODE, f"pod-{address}", f"uid-{address}", address)

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def scraper(self, engine_port: int = 9) -> Scraper:
        return Scraper(dict.fromkeys((contract.ROUTER, *contract.ENGINE_ROLES), self.port), engine_port)


@pytest.fixture
async def pods() -> AsyncIterator[Pods]:
    running = Pods()
    yield running
    running.close()


async def test_engines_and_routers_are_scraped_and_stamped(pods: Pods) -> None:
    engine = await pods.start("127.0.0.1", says(http(ENGINE_METRICS)))
    at = await pods.start("127.0.0.2", says(http(Router().body())))
    router = ScrapeTarget(contract.ROUTER, at.name, at.uid, at.address)
    before = time.monotonic()
    async with pods.scraper() as scraper:
        found = await scraper.scrape([engine, router])
    first, second = found[engine.uid], found[router.uid]
    assert isinstance(first, Scrape)
    assert isinstance(second, Scrape)
    assert before <= first.at <= time.monotonic()
    assert first.metrics.counters[families.TOKENS]
    assert second.metrics.counters[contract.METRIC_ARRIVALS] == {(): 0}


async def test_the_time_that_parsing_took_is_known_of_good_and_of_bad_expositions(pods: Pods) -> None:
    good = await pods.start("127.0.0.1", says(http(ENGINE_METRICS)))
    bad = await pods.start("127.0.0.2", says(http(b"<html>\n" * 1000)))
    async with pods.scraper() as scraper:
        found = await scraper.scrape([good, bad])
    assert 0 < found[good.uid].seconds < 1
    assert 0 < found[bad.uid].seconds < 1


def test_the_largest_exposition_holds_four_of_today_and_no_more_than_a_moment_of_the_event_loop() -> None:
    """Of all series new, its worst, as a defective engine may have them: a counter label on every request."""
    line = b'vllm:inter_token_latency_seconds_bucket{request="%d",le="+Inf"} 1\n'
    body = b"".join(line % n for n in range(scrape.MAX_BYTES // len(line)))
    assert 4 * len(ENGINE_METRICS) < scrape.MAX_BYTES
    with without_other_tests_objects():
        began = time.thread_time()
        parse(body, families.ENGINE)
        assert time.thread_time() - began < 0.3, "some 25 ms; a second with 8 MiB"


async def test_connections_are_kept_between_rounds(pods: Pods) -> None:
    engine = await pods.start("127.0.0.1", says(http(ENGINE_METRICS)))
    async with pods.scraper() as scraper:
        for _ in range(3):
            assert isinstance((await scraper.scrape([engine]))[engine.uid], Scrape)
    assert pods.connections == {"127.0.0.1": 1}


def launcher_metrics(up: int | None) -> bytes:
    """`up`: None for a launcher of the version before, which passes no metrics of the engine on."""
    own = b'# TYPE phasewise_launcher_phase gauge\nphasewise_launcher_phase{phase="serving"} 1.0\n'
    return own if up is None else own + f"{contract.METRIC_ENGINE_UP} {up}\n".encode()


async def test_an_engines_metrics_come_from_its_launcher(pods: Pods) -> None:
    engine = await pods.start("127.0.0.1", says(http(launcher_metrics(1) + ENGINE_METRICS)))
    async with pods.scraper() as scraper:
        found = (await scraper.scrape([engine]))[engine.uid]
    assert isinstance(found, Scrape)
    assert found.metrics.counters[families.TOKENS]
    assert scrape.PORTS[contract.PREFILL] == scrape.PORTS[contract.DECODE] == contract.LAUNCHER_PORT


async def test_an_engine_that_its_launcher_could_not_read_is_unknown_and_is_not_asked_itself(pods: Pods) -> None:
    target = await pods.start("127.0.0.1", says(http(launcher_metrics(0))))
    engine = Pods()
    await engine.start("127.0.0.1", says(http(ENGINE_METRICS)))
    async with pods.scraper(engine.port) as scraper:
        found = (await scraper.scrape([target]))[target.uid]
    engine.close()
    assert found == ScrapeError("refused", "the launcher could not read the metrics of the engine")
    assert engine.connections == {}


async def test_an_engine_of_the_version_before_is_read_itself(pods: Pods) -> None:
    target = await pods.start("127.0.0.1", says(http(launcher_metrics(None))))
    engine = Pods()
    await engine.start("127.0.0.1", says(http(ENGINE_METRICS)))
    async with pods.scraper(engine.port) as scraper:
        read = (await scraper.scrape([target]))[target.uid]
        engine.close()
    async with pods.scraper() as scraper:
        refused = (await scraper.scrape([target]))[target.uid]
    assert isinstance(read, Scrape)
    assert isinstance(refused, ScrapeError)
    assert refused.reason == "refused"


async def test_both_ports_of_an_engine_of_the_version_before_have_the_time_of_one_scrape(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 0.3)

    async def late(_request: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)  # two thirds of the time, at each port
        writer.write(http(launcher_metrics(None)))

    target = await pods.start("127.0.0.1", late)
    async with pods.scraper(pods.port) as scraper:
        found = (await scraper.scrape([target]))[target.uid]
    assert isinstance(found, ScrapeError)
    assert found.reason == "timeout"


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        (says(http(b"no", "503 Service Unavailable")), "status", "503"),
        (says(http(b"", "302 Found", "Location: /elsewhere")), "status", "302"),
        (says(http(b"x" * 3000)), "too_large", "2000 bytes"),
        (says(http(b"x" * 1000, length=3000), then_closes=True), "malformed", "cut off"),
        (says(http(b"<html>\n")), "malformed", "not the metrics"),
        (says(http(b"")), "malformed", "empty"),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "malformed", "HTTP"),
        (says(b"", then_closes=True), "refused", ""),
        (never, "timeout", "0.2 s"),
    ],
    ids=["error", "redirect", "large", "cut off", "html", "empty", "not http", "closed", "silent"],
)
async def test_why_a_pod_was_not_read(
    pods: Pods, monkeypatch: pytest.MonkeyPatch, answer: Answer, reason: str, message: str
) -> None:
    monkeypatch.setattr(scrape, "MAX_BYTES", 2000)
    if answer is never:  # elsewhere a busy machine's pause must not be taken for silence
        monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 0.2)
    target = await pods.start("127.0.0.1", answer)
    async with pods.scraper() as scraper:
        found = (await scraper.scrape([target]))[target.uid]
    assert isinstance(found, ScrapeError)
    assert found.reason == reason
    assert message in found.message


async def test_a_pod_that_is_not_there_is_refused_and_one_that_is_silent_holds_up_nobody(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 0.3)
    silent = await pods.start("127.0.0.1", never)
    alive = await pods.start("127.0.0.2", says(http(ENGINE_METRICS)))
    gone = ScrapeTarget(contract.PREFILL, "gone", "gone", "127.0.0.3")
    started = time.monotonic()
    async with pods.scraper() as scraper:
        found = await scraper.scrape([silent, gone, alive])
    assert time.monotonic() - started < 2 * scrape.TIMEOUT_SECONDS
    assert isinstance(found[alive.uid], Scrape)
    reasons = [result.reason for result in (found[silent.uid], found[gone.uid]) if isinstance(result, ScrapeError)]
    assert reasons == ["timeout", "refused"]


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
async def test_no_proxy_stands_between(pods: Pods, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.9:9")
    target = await pods.start("127.0.0.1", says(http(ENGINE_METRICS)))
    async with pods.scraper() as scraper:
        assert isinstance((await scraper.scrape([target]))[target.uid], Scrape)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_an_ipv6_pod_is_read(pods: Pods) -> None:
    target = await pods.start("::1", says(http(ENGINE_METRICS)))
    async with pods.scraper() as scraper:
        assert isinstance((await scraper.scrape([target]))[target.uid], Scrape)
        assert str(scrape.metrics_url("fd00::1", 8000)) == "http://[fd00::1]:8000/metrics"


async def test_activity_is_waited_for(pods: Pods) -> None:
    asked: list[bytes] = []

    async def respond(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(request.split(b"\r\n")[0])
        writer.write(http(b"8\n"))

    router = await pods.start("127.0.0.1", respond)
    async with pods.scraper() as scraper:
        assert await scraper.wait_activity(router.address, since=7, seconds=30) == 8
    assert asked == [b"GET /activity?since=7&seconds=30 HTTP/1.1"]


@pytest.mark.parametrize(
    "answer",
    [says(http(b"404", "404 Not Found")), says(http(b"soon")), says(b"", then_closes=True), never],
    ids=["older router", "not a number", "closed", "silent"],
)
async def test_a_router_that_cannot_say_is_unknown(pods: Pods, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 0.1)
    router = await pods.start("127.0.0.1", answer)
    async with pods.scraper() as scraper:
        assert await scraper.wait_activity(router.address, since=7, seconds=0.1) is None


async def test_a_router_that_is_not_there_is_unknown() -> None:
    async with Scraper({contract.ROUTER: 9}) as scraper:
        assert await scraper.wait_activity("127.0.0.7", since=7, seconds=30) is None
