"""`python -m bench.scrape [ROUNDS]`: CPU of one scrape of /metrics, over HTTP on loopback and parsed.

Beside it, in the same run, prometheus-client's own parser on the same bytes. The pages are served by another process,
and only this one's CPU is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from phasewise_operator.scaling.scrape import ScrapeError, Scraper
from phasewise_operator.scaling.signals import exposition, families
from phasewise_operator.scaling.signals.history import ScrapeTarget
from phasewise_runtime import contract

SAMPLES = Path(__file__).parent.parent / "tests/operator/scaling/signals/expositions"
SIDE_BY_SIDE = 4
"""Pages of one service that are read at the same time."""


def sample_pages() -> dict[str, bytes]:
    """By role, as a router and an engine's launcher answer."""
    registry = CollectorRegistry()
    Counter(contract.METRIC_ARRIVALS, "Requests read.", registry=registry)
    up = f"# TYPE {contract.METRIC_ENGINE_UP} gauge\n{contract.METRIC_ENGINE_UP} 1\n"
    return {
        contract.DECODE: up.encode() + (SAMPLES / "vllm-0.32-decode.txt").read_bytes(),
        contract.ROUTER: (SAMPLES / "router-before-arrivals.txt").read_bytes() + generate_latest(registry),
    }


async def serve(role: str) -> None:
    """Answers every request on a connection with the page, and as little else as HTTP allows."""
    page = sample_pages()[role]
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def page_server(role: str) -> Generator[int]:
    command = [sys.executable, "-m", "bench.scrape", "serve", role]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def labelled(body: bytes, n: int) -> bytes:
    """The page with a label more on every sample, so that none of its series was seen before."""
    more = re.sub(rb"(?m)^([\w:]+)\{", rb'\1{n="%d",' % n, body)
    return re.sub(rb"(?m)^([\w:]+) ", rb'\1{n="%d"} ' % n, more)


def cpu(work: Callable[[], object], rounds: int) -> float:
    """CPU milliseconds of one call."""
    if isinstance(found := work(), exposition.ParseError):
        raise SystemExit(found.message)
    started = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - started) / rounds * 1000


async def scraped(role: str, port: int, rounds: int) -> float:
    """CPU milliseconds of one page, fetched and parsed, without the first, which connects."""
    targets = [ScrapeTarget(role, f"pod-{n}", f"uid-{n}", "127.0.0.1") for n in range(SIDE_BY_SIDE)]
    async with Scraper(ports={role: port}) as scraper:
        failed = [result for result in (await scraper.scrape(targets)).values() if isinstance(result, ScrapeError)]
        if failed:
            raise SystemExit(f"a scrape failed: {failed[0]}")
        started = time.process_time()
        for _ in range(rounds):
            await scraper.scrape(targets)
        seconds = time.process_time() - started
    return seconds / rounds / SIDE_BY_SIDE * 1000


def main(rounds: int) -> None:
    print(f"CPU ms a scrape, {rounds} rounds of {SIDE_BY_SIDE}. first: parse of a page with series not seen before;")
    print("prometheus-client parses only, it fetches nothing; ratio: to fetch+parse")
    print(f"{'role':<8}{'KB':>6}{'fetch+parse':>13}{'parse':>8}{'first':>8}{'prometheus-client':>19}{'ratio':>7}")
    for role, body in sample_pages().items():
        with page_server(role) as port:
            fetched = asyncio.run(scraped(role, port, rounds))
        needed = families.filter_for(role)
        parse = cpu(lambda body=body, needed=needed: exposition.parse(body, needed), rounds)

        unseen = iter([labelled(body, n) for n in range(rounds // 4 + 1)])
        new = cpu(lambda unseen=unseen, needed=needed: exposition.parse(next(unseen), needed), rounds // 4)
        theirs = cpu(lambda body=body: list(text_string_to_metric_families(body.decode())), rounds // 20)
        figures = f"{fetched:>13.2f}{parse:>8.2f}{new:>8.2f}{theirs:>19.2f}{theirs / fetched:>6.0f}x"
        print(f"{role:<8}{len(body) / 1000:>6.0f}{figures}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
