"""The two legs of a request over HTTP. The only module that sends requests to engines (but for health probes)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp

from phasewise_runtime.router.fleet import Fleet
from phasewise_runtime.router.headers import Headers
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.settings import Settings

KEEPALIVE_SECONDS = 2.0
"""Below the 5 s after which vLLM closes an idle connection."""
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
BLAMELESS_STATUS = frozenset({408, 425, 429})
"""The pod is busy, not broken."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A whole answer of an engine."""

    status: int
    headers: Headers
    body: bytes


@dataclass(eq=False)
class LegError(Exception):
    """A leg that gave no answer; says what that means for another try."""

    pod: Pod
    reason: str
    message: str
    hard: bool = False
    """The pod cannot be reached or is going away: exclude it at once."""
    blame: bool = True
    """The failure counts against the pod."""
    sent: bool = True
    """The engine may have seen the request: its KV parameters are used up."""
    suspect_prefill: bool = False
    """The prefill pod may be the cause: its KV could not be loaded."""
    answer: EngineAnswer | None = None
    """What to tell the client if nothing else works."""


class Legs:
    def __init__(self, session: aiohttp.ClientSession, settings: Settings, fleet: Fleet) -> None:
        self._session = session
        self._settings = settings
        self._fleet = fleet

    async def prefill(self, pod: Pod, path: str, headers: Headers, body: bytes) -> EngineAnswer:
        """Run the prefill leg; a 4xx is an answer, everything else that is not 200 a failure."""
        timeout = aiohttp.ClientTimeout(
            total=min(self._settings.prefill_seconds, self._settings.max_generation_seconds),
            sock_connect=self._settings.connect_seconds,
        )
        with self._fleet.leg(pod):
            return await read_whole(await self._send(pod, path, headers, body, timeout), pod)

    async def decode(
        self, pod: Pod, path: str, headers: Headers, body: bytes, *, deadline: float, streamed: bool
    ) -> aiohttp.ClientResponse:
        """Send the decode leg; returns with the response head, whose status is one to be passed on."""
        silence = max(self._settings.first_token_seconds, self._settings.gap_seconds) if streamed else None
        timeout = aiohttp.ClientTimeout(total=deadline, sock_connect=self._settings.connect_seconds, sock_read=silence)
        response = await self._send(pod, path, headers, body, timeout)
        if response.status in RETRIED_STATUS:
            await read_whole(response, pod)
        return response

    async def _send(
        self, pod: Pod, path: str, headers: Headers, body: bytes, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        trace = SimpleNamespace(reused=False)
        try:
            return await self._session.post(
                pod.base_url + path,
                data=body,
                headers=headers,
                timeout=timeout,
                trace_request_ctx=trace,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as e:
            raise LegError(pod, "connect", "no connection could be made", hard=True, sent=False) from e
        except (asyncio.TimeoutError, aiohttp.ServerTimeoutError) as e:
            raise LegError(pod, "timeout", "no answer in time") from e
        except (aiohttp.ClientError, OSError) as e:
            if trace.reused:
                raise LegError(pod, STALE, "an idle connection had been closed", blame=False) from e
            raise LegError(pod, "disconnected", "the connection broke before an answer") from e


STALE = "stale_connection"


async def read_whole(response: aiohttp.ClientResponse, pod: Pod) -> EngineAnswer:
    """Read the body; LegError where the status or the connection says that another pod should be asked."""
    try:
        body = await response.read()
    except asyncio.TimeoutError as e:
        raise LegError(pod, "timeout", "no whole answer in time") from e
    except (aiohttp.ClientError, OSError) as e:
        raise LegError(pod, "disconnected", "the connection broke within the answer", hard=True) from e
    finally:
        response.release()
    answer = EngineAnswer(response.status, list(response.headers.items()), body)
    if answer.status in RETRIED_STATUS:
        blame = answer.status not in BLAMELESS_STATUS
        message = f"the engine answered with status {answer.status}"
        raise LegError(pod, f"status_{answer.status}", message, blame=blame, answer=answer)
    return answer


def open_session() -> aiohttp.ClientSession:
    """The connections to all engines. No limit here: admission limits, and a request must not wait between legs."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_mark_reused)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ttl_dns_cache=5),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent",),
        auto_decompress=False,
        trace_configs=[trace],
        read_bufsize=2**18,
    )


async def _mark_reused(_: aiohttp.ClientSession, context: Any, __: Any) -> None:
    context.trace_request_ctx.reused = True
