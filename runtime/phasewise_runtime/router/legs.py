"""The two legs of a request over HTTP. The only module that sends requests to engines (but for health probes)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp

from phasewise_runtime.router.headers import Headers
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.settings import Settings
from phasewise_runtime.router.timing import now

STALE = "stale_connection"
STALE_SECONDS = 0.2
"""An idle connection that had been closed says so at once; one that breaks later broke on the request."""
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
    def __init__(self, session: aiohttp.ClientSession, settings: Settings) -> None:
        self._session = session
        self._settings = settings

    async def prefill(
        self, pod: Pod, path: str, headers: Headers, body: bytes, *, deadline: float, gone: asyncio.Future[None]
    ) -> EngineAnswer:
        """Run the prefill leg; a 4xx is an answer, everything else that is not 200 a failure."""
        timeout = self._timeout(deadline, self._settings.prefill_seconds)
        response = await _unless_gone(pod, gone, self._send(pod, path, headers, body, timeout))
        return await read_whole(response, pod)

    async def decode(
        self,
        pod: Pod,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        streamed: bool,
        gone: asyncio.Future[None],
    ) -> aiohttp.ClientResponse:
        """Send the decode leg; returns with the response head, whose status is one to be passed on."""
        silence = max(self._settings.first_token_seconds, self._settings.gap_seconds) if streamed else None
        timeout = self._timeout(deadline, silence)
        response = await _unless_gone(pod, gone, self._send(pod, path, headers, body, timeout))
        if response.status in RETRIED_STATUS:
            await read_whole(response, pod)
        return response

    def _timeout(self, deadline: float, silence: float | None) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=deadline, sock_connect=self._settings.connect_seconds, sock_read=silence)

    async def _send(
        self, pod: Pod, path: str, headers: Headers, body: bytes, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        trace, began = SimpleNamespace(reused=False), now()
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
        except asyncio.TimeoutError as e:
            raise _timed_out(pod, e) from e
        except (aiohttp.ClientError, OSError) as e:
            if trace.reused and now() - began < STALE_SECONDS:
                raise LegError(pod, STALE, "an idle connection had been closed", blame=False) from e
            raise LegError(pod, "disconnected", "the connection broke before an answer") from e


async def _unless_gone(
    pod: Pod, gone: asyncio.Future[None], sending: Coroutine[Any, Any, aiohttp.ClientResponse]
) -> aiohttp.ClientResponse:
    """The response, which ends when the pod is gone as the wait for it does: the connection may never tell."""
    task = asyncio.ensure_future(sending)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise LegError(pod, "disconnected", "the pod is gone", hard=True)
    finally:
        task.cancel()
    response = task.result()
    gone.add_done_callback(lambda _: response.close())
    return response


def _timed_out(pod: Pod, error: asyncio.TimeoutError) -> LegError:
    """The engine was silent for too long, or the request is over."""
    if isinstance(error, aiohttp.ServerTimeoutError):
        return LegError(pod, "timeout", "no answer in time")
    return LegError(pod, "deadline", "the request took longer than a request may", blame=False)


async def read_whole(response: aiohttp.ClientResponse, pod: Pod) -> EngineAnswer:
    """Read the body; LegError where the status or the connection says that another pod should be asked."""
    try:
        body = await response.read()
    except asyncio.TimeoutError as e:
        raise _timed_out(pod, e) from e
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
