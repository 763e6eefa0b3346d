"""Sends canaries: proves that KV flows between two pods before requests rely on it, and looks again where it may not.

A canary is three requests: the prompt to decode alone, which also warms a new engine; the same to prefill; and to
decode with the KV of it. It uses connections of its own. Requests wait for one only where no path is proved yet.
What is proved lasts as long as both engines run. A path is not proved again by the clock: requests that use it show
whether it works, and one that none uses harms nobody, so that an idle service stays idle.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import aiohttp

from phasewise_runtime.contract import HEADER_REQUEST_ID, PATH_METRICS
from phasewise_runtime.router import kv_paths
from phasewise_runtime.router import protocol as proto
from phasewise_runtime.router.engine_client import EngineClient
from phasewise_runtime.router.kv_evidence import (
    Output,
    Result,
    Transfers,
    canary_request,
    judge,
    read_output,
    read_progress,
    read_transfers,
)
from phasewise_runtime.router.kv_schedule import Canary, Schedule
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.timing import now

log = logging.getLogger(__name__)

INTERVAL = 0.25
FIRST_SECONDS = 30.0
"""Longest request of a canary over a path that serves nobody. The first handshake of two engines takes up to 19 s."""
AGAIN_SECONDS = 3.0
"""The same over a path on which requests wait. With SUSPECT_SECONDS before and HEALTH_SECONDS after it, a fault is seen
in less than 10 s."""
SLOWER = 5.0
"""Times the answer of decode alone that its answer with KV may take, where that is more."""
HEALTH_SECONDS = 1.0
STEP_SECONDS = 1.5
"""Beyond the time of a request: a prefill engine without any step in both is stopped. A single long step takes less."""
POLL_SECONDS = 3.0
"""Between looks at the connectors' counters of decode pods that get KV."""
COUNTED_SECONDS = 1.0
"""An engine counts a transfer with a later step, which may be one after its answer."""
REQUEST_ID = "phasewise-canary-"

NO_RESULT = Result(conclusive=False)


class _NoResultError(Exception):
    """The canary says nothing of the path; the message says why."""


class _FailedError(Exception):
    """The path has failed: one of the reasons of kv_paths."""


class _StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


_BROKEN = (aiohttp.ClientError, OSError, ValueError)
"""A refused or broken connection, or no JSON."""


class Canaries:
    def __init__(self, pod_registry: PodRegistry, engine_client: EngineClient, metrics: Metrics) -> None:
        self._pod_registry = pod_registry
        self._kv = pod_registry.kv
        self._engine_client = engine_client
        self._metrics = metrics
        self._schedule = Schedule(pod_registry.kv)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async def close(self) -> None:
        await self._session.close()

    async def run_forever(self) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._kv.suspect_waits(now())
                while (canary := self._schedule.begin(now())) is not None:
                    task = asyncio.create_task(self._run(canary))
                    running.add(task)
                    task.add_done_callback(running.discard)
                await self._pod_registry.changed(INTERVAL)
        finally:
            for task in tuple(running):
                task.cancel()

    async def watch_transfers(self) -> None:
        """Look at the counters of the decode pods that got KV since the last look."""
        before = dict[str, Transfers]()

        async def look(pod: Pod) -> None:
            counters = await self._transfers(pod)
            self._kv.report_transfers(pod, counters.since(before.get(pod.uid, Transfers())))
            before[pod.uid] = counters

        while True:
            await asyncio.sleep(POLL_SECONDS)
            used = [state.pod for state in self._kv.pods.values() if state.used]
            await asyncio.gather(*(look(pod) for pod in used))
            before = {uid: counters for uid, counters in before.items() if uid in self._kv.pods}

    # --- one canary ------------------------------------------------------------------------------------------
    async def _run(self, canary: Canary) -> None:
        decode, prefill = canary.decode, canary.prefill
        extra: dict[str, Any] = {"decode_pod": decode.name, "prefill_pod": prefill.name if prefill else None}
        began, result, refused = now(), NO_RESULT, False
        try:
            alone, seconds, refused = await self._alone(canary)
            if prefill is not None and alone is not None:
                result = await self._with_kv(prefill, decode, alone, seconds)
        except _FailedError as e:
            result = Result(str(e))
        except _NoResultError as e:
            extra["detail"] = str(e)
        except Exception:
            # Reported as without result, so that it is tried again after a back-off and not at once.
            log.exception("a canary failed by a fault of the router", extra=extra)
        finally:
            self._schedule.end(canary)
        said = "proved" if result.proved else result.reason or ("refused" if refused else "no_result")
        if prefill is not None:
            refused = refused or (bool(result.reason) and not result.conclusive)
            self._kv.report_canary(prefill, decode, result, now(), refused=refused)
            self._metrics.kv_canaries.labels(said).inc()
        extra |= {"result": said, "bytes": result.bytes, "seconds": round(now() - began, 3)}
        log.info("canary ended", extra=extra)

    async def _alone(self, canary: Canary) -> tuple[Output | None, float, bool]:
        """The answer of decode alone, its seconds, and whether the engine refuses the canary."""
        pod, began, answered = canary.decode, now(), False
        limit = self._limit(canary.prefill, pod)
        try:
            for logprobs in (True, False):
                request = canary_request(_salt(), logprobs=logprobs)
                try:
                    body = proto.decode_body(request, None, pod.model, assemble=False)
                    answer = await self._complete(pod, body, limit)
                except _StatusError as e:
                    if e.status >= 500 or e.status in (404, 408, 425, 429):
                        raise
                    answered = True
                else:
                    answered = True
                    return read_output(answer.body), now() - began, False
        except (*_BROKEN, _StatusError, asyncio.TimeoutError) as e:
            raise _NoResultError(f"decode alone does not answer: {e!r}") from e
        finally:
            self._kv.report_warm(pod, now(), answered=answered)
        return None, 0.0, True

    async def _with_kv(self, prefill: Pod, decode: Pod, alone: Output, seconds: float) -> Result:
        request = canary_request(_salt(), logprobs=bool(alone.tokens))
        limit = self._limit(prefill, decode)
        kv, prefilled = await self._prefill(prefill, proto.prefill_body(request, prefill.model), limit)
        before = await self._transfers(decode)
        body = proto.decode_body(request, kv, decode.model, assemble=False)
        try:
            answer = await self._try(decode, body, max(limit, SLOWER * seconds), kv_paths.KV_NOT_LOADED)
        except asyncio.TimeoutError as e:
            raise _FailedError(kv_paths.TRANSFER_TIMEOUT) from e
        return judge(alone, prefilled, read_output(answer.body), await self._moved(decode, before))

    async def _prefill(self, pod: Pod, body: proto.Body, limit: float) -> tuple[Mapping[str, Any], int | None]:
        before = asyncio.create_task(self._exposition(pod, limit))
        try:
            answer = await self._try(pod, body, limit, kv_paths.PREFILL_FAILED)
        except asyncio.TimeoutError as e:
            if await self._is_stopped(pod, read_progress(await before)):
                raise _FailedError(kv_paths.PREFILL_TIMEOUT) from e
            raise _NoResultError("prefill is slow") from e
        finally:
            before.cancel()
        if answer.kv_params is None:
            raise _FailedError(kv_paths.KV_PARAMS_MISSING)
        return answer.kv_params, proto.prompt_tokens(answer.body.get("usage"))

    async def _is_stopped(self, pod: Pod, before: tuple[bytes, ...]) -> bool:
        """Its server does not answer, or its engine has made no step since `before`."""
        if not await self._engine_client.is_healthy(pod, HEALTH_SECONDS):
            return True
        await asyncio.sleep(STEP_SECONDS)
        return bool(before) and read_progress(await self._exposition(pod, HEALTH_SECONDS)) == before

    async def _moved(self, pod: Pod, before: Transfers) -> Transfers:
        until = now() + COUNTED_SECONDS
        while True:
            moved = (await self._transfers(pod)).since(before)
            if not moved.nothing_moved or now() > until:
                return moved
            await asyncio.sleep(COUNTED_SECONDS / 10)

    def _limit(self, prefill: Pod | None, decode: Pod) -> float:
        path = self._kv.paths.get((prefill.uid, decode.uid)) if prefill else None
        return AGAIN_SECONDS if path is not None and path.open else FIRST_SECONDS

    # --- HTTP ------------------------------------------------------------------------------------------------
    async def _try(self, pod: Pod, body: proto.Body, seconds: float, failed: str) -> proto.Answer:
        """The answer to a part of the canary; TimeoutError where it takes longer. `failed`: why the path fails where
        the engine breaks on it. One that refuses it says nothing of the path."""
        try:
            return await self._complete(pod, body, seconds)
        except asyncio.TimeoutError:  # an OSError, too
            raise
        except _BROKEN as e:
            raise _FailedError(failed) from e
        except _StatusError as e:
            if e.status < 500:
                raise _NoResultError(f"{pod.role} refuses: {e}") from e
            raise _FailedError(failed) from e

    async def _complete(self, pod: Pod, body: proto.Body, seconds: float) -> proto.Answer:
        headers = {HEADER_REQUEST_ID: REQUEST_ID + uuid.uuid4().hex, "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=seconds)
        url = pod.base_url + proto.Endpoint.COMPLETIONS.value
        async with self._session.post(url, data=proto.encode(body), headers=headers, timeout=timeout) as response:
            if response.status != 200:
                raise _StatusError(response.status)
            answer = proto.read_answer(await response.read())
        if answer.aborted:
            raise _StatusError(503)
        return answer

    async def _transfers(self, pod: Pod) -> Transfers:
        """Its counters; unknown where it gives none."""
        return read_transfers(await self._exposition(pod, AGAIN_SECONDS))

    async def _exposition(self, pod: Pod, seconds: float) -> bytes:
        """An engine's /metrics; empty where it cannot be read."""
        try:
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._session.get(pod.base_url + PATH_METRICS, timeout=timeout) as response:
                return await response.read() if response.status == 200 else b""
        except (*_BROKEN, asyncio.TimeoutError):
            return b""


def _salt() -> str:
    return uuid.uuid4().hex
