"""Active probes of ejected pods: whether one may have a trial request. Pods that serve are not probed."""

from __future__ import annotations

import asyncio

import aiohttp

from phasewise_runtime.router.fleet import Fleet
from phasewise_runtime.router.pods import Pod

PROBE_SECONDS = 2.0
INTERVAL = 0.25


async def probe_forever(fleet: Fleet, session: aiohttp.ClientSession) -> None:
    while True:
        await asyncio.gather(*(_probe(fleet, session, pod) for pod in fleet.probes_due()))
        await asyncio.sleep(INTERVAL)


async def _probe(fleet: Fleet, session: aiohttp.ClientSession, pod: Pod) -> None:
    try:
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        async with session.get(pod.base_url + "/health", timeout=timeout, allow_redirects=False) as response:
            ok = response.status == 200
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
        ok = False
    fleet.report_probe(pod, ok=ok)
