"""HTTP client of the engines for clients' requests, prefill and decode, and for health probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp

from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.headers import Headers
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.settings import Settings
from phasewise_runtime.router.timing import now

STALE = "stale_connection"
STALE_SECONDS = 0.2
"""A kept connection that the engine had closed breaks within this time; one that breaks later broke on the request."""
KEEPALIVE_SECONDS = 2.0
"""Below the 5 s after which vLLM closes an idle connection."""
ENGINE_DIED = "engine_died"
"""The engine process ended by itself while it had the request: the request may be the cause."""
DISCONNECTED = "disconnected"
POD_GONE = "pod_gone"
KV_PATH_FAILED = "kv_path_failed"
"""The request waited on KV that does not flow: it is sent elsewhere, and the pod is not to blame for it alone."""
TRUNCATED = "truncated"
_MAY_HAVE_DIED = frozenset({STALE, DISCONNECTED, TRUNCATED})
_ENGINE_DEAD = b"EngineCore encountered an issue"
"""Of vLLM's EngineDeadError: what its API server answers to all requests when the engine process is gone."""
DIAGNOSIS_SECONDS = 2.0
MISCONFIGURED_STATUS = frozenset({301, 302, 303, 307, 308, 401, 403, 404, 405})
"""No fault of the request, whose path and model were checked: an engine of another name, with a key, or no engine."""
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504}) | MISCONFIGURED_STATUS
BLAMELESS_STATUS = frozenset({408, 425, 429})
"""The pod is busy, not broken."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An engine's complete answer."""

    status: int
    headers: Headers
    body: bytes


@dataclass(eq=False)
class EngineError(Exception):
    """A prefill or decode request without an answer; the fields say what that means for a retry."""

    pod: Pod
    reason: str
    message: str
    hard: bool = False
    """The pod cannot be reached or is shutting down: eject it at once."""
    blame: bool = True
    """The failure counts against the pod."""
    sent: bool = True
    """The engine may have seen the request, so its KV parameters must not be used again."""
    suspect_prefill: bool = False
    """The prefill pod may be the cause: its KV could not be loaded."""
    answer: EngineAnswer | None = None
    """The engine's own error: the client's answer if no retry succeeds."""

    def log_fields(self) -> dict[str, str]:
        detail = f"{self.message} ({self.__cause__})" if self.__cause__ else self.message
        return {"pod": self.pod.name, "role": self.pod.role, "reason": self.reason, "detail": detail}


def parse_answer(pod: Pod, answer: EngineAnswer, what: str) -> proto.Answer:
    """Parse a complete 200 answer; EngineError where it is malformed or the engine aborted the request."""
    try:
        parsed = proto.read_answer(answer.body)
    except ValueError as e:
        raise EngineError(pod, "malformed", f"{what} cannot be read: {e}") from e
    if parsed.aborted:
        raise EngineError(pod, "abort", "the engine is shutting down and ended the request", hard=True)
    return parsed


class EngineClient:
    def __init__(self, session: aiohttp.ClientSession, settings: Settings) -> None:
        self._session = session
        self._settings = settings

    async def prefill(
        self, pod: Pod, path: str, headers: Headers, body: bytes, *, deadline: float, cut: asyncio.Future[str]
    ) -> EngineAnswer:
        """Send the prefill request. Returns a 200 or a 4xx; every other status raises EngineError."""
        timeout = self._timeout(deadline, self._settings.prefill_seconds)
        response = await _unless_cut(pod, cut, self._send(pod, path, headers, body, timeout))
        return await read_answer(response, pod)

    async def decode(
        self,
        pod: Pod,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        streamed: bool,
        cut: asyncio.Future[str],
    ) -> aiohttp.ClientResponse:
        """Send the decode request; returns at the response head, with a status that may be passed to the client."""
        silence = max(self._settings.first_token_seconds, self._settings.gap_seconds) if streamed else None
        timeout = self._timeout(deadline, silence)
        response = await _unless_cut(pod, cut, self._send(pod, path, headers, body, timeout))
        if response.status in RETRIED_STATUS:
            await read_answer(response, pod)
        return response

    async def diagnose(self, failure: EngineError, is_leaving: Callable[[Pod], bool]) -> None:
        """Mark the failure where the engine process ended by itself.

        It did where it said so, or where it broke the connection and its health check fails now. One that gives no
        answer in time is slow or out of reach, and one that refuses a request may repeat words of the client. That the
        engine of a pod ends that is being deleted is no fault of a request.
        """
        said = failure.answer is not None and failure.answer.status >= 500 and _ENGINE_DEAD in failure.answer.body
        broke = failure.reason in _MAY_HAVE_DIED and not is_leaving(failure.pod)
        died = said or (broke and await self._health(failure.pod, DIAGNOSIS_SECONDS) is False)
        if died and not is_leaving(failure.pod):
            failure.reason, failure.message, failure.answer = ENGINE_DIED, "the engine process ended", None
            failure.hard = failure.blame = True
            failure.suspect_prefill = False

    async def is_healthy(self, pod: Pod, seconds: float) -> bool:
        """The engine's own health check passes within this time."""
        return await self._health(pod, seconds) is True

    async def _health(self, pod: Pod, seconds: float) -> bool | None:
        """None: no answer within this time."""
        try:
            timeout = aiohttp.ClientTimeout(total=seconds)
            # A connection that is kept would be the next request's, and hide by its age why that request failed.
            async with self._session.get(
                pod.base_url + "/health",
                timeout=timeout,
                headers={"Connection": "close"},
                trace_request_ctx=SimpleNamespace(),
                allow_redirects=False,
            ) as response:
                return response.status == 200
        except asyncio.TimeoutError:
            return None
        except (aiohttp.ClientError, OSError):
            return False

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
            raise EngineError(pod, "connect", "no connection could be made", hard=True, sent=False) from e
        except asyncio.TimeoutError as e:
            raise _timed_out(pod, e) from e
        except (aiohttp.ClientError, OSError) as e:
            if trace.reused and now() - began < STALE_SECONDS:
                raise EngineError(pod, STALE, "an idle connection had been closed", blame=False) from e
            raise EngineError(pod, DISCONNECTED, "the connection broke before an answer") from e


async def _unless_cut(
    pod: Pod, cut: asyncio.Future[str], sending: Coroutine[Any, Any, aiohttp.ClientResponse]
) -> aiohttp.ClientResponse:
    """The response. Once it is cut, this wait and the response end: a dead pod's connection may stay open for ever."""
    task = asyncio.ensure_future(sending)
    try:
        await asyncio.wait((task, cut), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise cut_off(pod, cut.result())
    finally:
        task.cancel()
    response = task.result()
    cut.add_done_callback(lambda _: response.close())
    return response


def cut_off(pod: Pod, reason: str) -> EngineError:
    """Why a request was ended by the router."""
    if reason == KV_PATH_FAILED:
        return EngineError(pod, KV_PATH_FAILED, "the KV transfer that it waited on fails", blame=False)
    return EngineError(pod, DISCONNECTED, "the pod is gone", hard=True)


def reason_of(failure: EngineError, cut: asyncio.Future[str] | None) -> EngineError:
    """Why a request failed: a connection may have broken because the router ended the request."""
    ended = cut is not None and cut.done() and failure.reason == DISCONNECTED
    return cut_off(failure.pod, cut.result()) if cut is not None and ended else failure


def _timed_out(pod: Pod, error: asyncio.TimeoutError) -> EngineError:
    """`timeout`: the engine was silent for too long. `deadline`: the request itself took too long."""
    if isinstance(error, aiohttp.ServerTimeoutError):
        return EngineError(pod, "timeout", "no answer in time")
    return EngineError(pod, "deadline", "the request took longer than a request may", blame=False)


async def read_answer(response: aiohttp.ClientResponse, pod: Pod) -> EngineAnswer:
    """Read the body; EngineError where the status or a broken connection calls for a retry on another pod."""
    try:
        body = await response.read()
    except asyncio.TimeoutError as e:
        raise _timed_out(pod, e) from e
    except (aiohttp.ClientError, OSError) as e:
        raise EngineError(pod, DISCONNECTED, "the connection broke within the answer", hard=True) from e
    finally:
        response.release()
    answer = EngineAnswer(response.status, list(response.headers.items()), body)
    if answer.status in RETRIED_STATUS:
        blame = answer.status not in BLAMELESS_STATUS
        message = f"the engine answered with status {answer.status}"
        said = None if answer.status in MISCONFIGURED_STATUS else answer
        raise EngineError(pod, f"status_{answer.status}", message, blame=blame, answer=said)
    return answer


def open_session() -> aiohttp.ClientSession:
    """The connections to all engines. Without a limit: admission has one, and later waits are not wanted."""
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
