"""Scrapes metrics over HTTP. I/O.

A round takes as long as its slowest pod and at most TIMEOUT_SECONDS, however many pods are dead. Nothing is tried
again: the next round is the next try. An engine's metrics come from its launcher's port: the service's NetworkPolicy
lets the operator reach no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

import aiohttp
from yarl import URL

from phasewise_operator.scaling.signals import families
from phasewise_operator.scaling.signals.exposition import ParsedMetrics, parse
from phasewise_operator.scaling.signals.history import Scrape, ScrapeTarget
from phasewise_runtime import contract

TIMEOUT_SECONDS: Final = 1.5
"""A scrape, from connecting to its last byte: below the two seconds between rounds."""
MAX_BYTES: Final = 256 * 2**10
"""Four times an exposition of today. One is parsed in the event loop of all services: in 0.4 ms today, in 6 ms at this
size, and in 23 ms where every series of it is a new one. With 8 MiB that was a second."""
PARSE_SHARE: Final = 0.05
"""Of the event loop, for the expositions of one service. Those of eight pods of today take 0.2 % of it."""
PORTS: Final = {
    contract.PREFILL: contract.LAUNCHER_PORT,
    contract.DECODE: contract.LAUNCHER_PORT,
    contract.ROUTER: contract.ROUTER_ADMIN_PORT,
}
CONNECTIONS: Final = 4096
"""In use at once: 1,000 services, each with some pods scraped and one router waited on. Above it, scrapes queue up."""
CONNECTIONS_PER_POD: Final = 4
KEEP_ALIVE: Final = 4.0
"""Seconds. vLLM's server closes a connection after 5 idle seconds; to close first spares a failed request.
Services that are scraped slowly hold no connection in between."""

_ENGINE_UP: Final = f"\n{contract.METRIC_ENGINE_UP} ".encode()
"""Begins the launcher's line that says whether the engine's metrics follow."""

Reason: TypeAlias = Literal["timeout", "refused", "status", "too_large", "malformed"]


@dataclass(frozen=True)
class ScrapeError:
    """Why a pod has no metrics this round."""

    reason: Reason
    message: str
    seconds: float = 0.0
    """CPU time that it took to find that out of the answer."""


class Scraper:
    """One session for all services: `async with Scraper() as scraper`."""

    def __init__(self, ports: Mapping[str, int] = PORTS, engine_port: int = contract.ENGINE_PORT) -> None:
        """`ports` by role. `engine_port`: where an engine's metrics are whose launcher does not pass them on."""
        self._ports = ports
        self._engine_port = engine_port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=CONNECTIONS, limit_per_host=CONNECTIONS_PER_POD, keepalive_timeout=KEEP_ALIVE
            ),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Plain: unpacking costs more than reading it all from a pod nearby.
            headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()

    async def scrape(self, targets: Iterable[ScrapeTarget]) -> dict[str, Scrape | ScrapeError]:
        """By uid: the metrics of each, stamped with time.monotonic(), or why there are none."""
        pods = list(targets)
        results = await asyncio.gather(*(self._scrape(pod) for pod in pods))
        return {pod.uid: result for pod, result in zip(pods, results, strict=True)}

    async def wait_activity(self, address: str, since: int, seconds: float) -> int | None:
        """Arrivals so far at this router, as soon as they are not `since`, or after `seconds`. None: it cannot be
        reached, or its version does not have this endpoint."""
        url = _url(address, self._ports[contract.ROUTER], contract.PATH_ACTIVITY, f"since={since}&seconds={seconds:g}")
        timeout = aiohttp.ClientTimeout(total=seconds + TIMEOUT_SECONDS)
        try:
            async with self._open.get(url, timeout=timeout, allow_redirects=False) as answer:
                return int(await answer.content.read(64)) if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    async def _scrape(self, target: ScrapeTarget) -> Scrape | ScrapeError:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                body = await self._exposition(target)
        except TimeoutError:
            return ScrapeError("timeout", f"no complete answer within {TIMEOUT_SECONDS:g} s")
        except aiohttp.ClientPayloadError as error:
            return ScrapeError("malformed", f"the answer is cut off: {error}")
        except (aiohttp.ClientConnectionError, OSError) as error:
            return ScrapeError("refused", str(error))
        except aiohttp.ClientError as error:
            return ScrapeError("malformed", f"not an answer over HTTP: {error}")
        return body if isinstance(body, ScrapeError) else _parsed(body, target.role)

    async def _exposition(self, target: ScrapeTarget) -> bytes | ScrapeError:
        """Of an engine of the version before, whose launcher has its own metrics only, from the engine itself: a paused
        service keeps such pods, and no NetworkPolicy. Where one is enforced this is refused until they are replaced."""
        body = await self._body(target.address, self._ports[target.role])
        if isinstance(body, ScrapeError) or target.role == contract.ROUTER:
            return body
        if _ENGINE_UP + b"0\n" in body:
            return ScrapeError("refused", "the launcher could not read the metrics of the engine")
        if _ENGINE_UP not in body and b"\nphasewise_launcher_" in body:
            return await self._body(target.address, self._engine_port)
        return body

    async def _body(self, address: str, port: int) -> bytes | ScrapeError:
        async with self._open.get(metrics_url(address, port), allow_redirects=False) as answer:
            if answer.status != 200:
                return ScrapeError("status", f"HTTP status {answer.status}")
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > MAX_BYTES:
                    # What is left must not be taken for the next answer on this connection.
                    answer.close()
                    return ScrapeError("too_large", f"more than {MAX_BYTES} bytes")
            return bytes(body)

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use it as `async with Scraper() as scraper`")
        return self._session


def _parsed(body: bytes, role: str) -> Scrape | ScrapeError:
    began = time.thread_time()
    parsed = parse(body, families.filter_for(role))
    seconds = time.thread_time() - began
    is_valid = isinstance(parsed, ParsedMetrics)
    return Scrape(time.monotonic(), parsed, seconds) if is_valid else ScrapeError("malformed", parsed.message, seconds)


def pause_after(results: Iterable[Scrape | ScrapeError]) -> float:
    """Seconds from the beginning of a round over a service to the next, at the least: a service whose expositions take
    long to parse is looked at less often, and the others lose nothing."""
    return sum(result.seconds for result in results) / PARSE_SHARE


@lru_cache(maxsize=2**13)
def metrics_url(address: str, port: int) -> URL:
    return _url(address, port, contract.PATH_METRICS)


def _url(address: str, port: int, path: str, query: str = "") -> URL:
    """Of parts that are known to be plain: quoting each of them anew would cost as much as a small exposition."""
    host = f"[{address}]" if ":" in address else address
    return URL(f"http://{host}:{port}{path}{'?' if query else ''}{query}", encoded=True)
