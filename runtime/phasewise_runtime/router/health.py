"""Active probes of ejected pods: whether one goes half-open. Pods that serve are not probed."""

from __future__ import annotations

import asyncio

import aiohttp

from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import Pod

PROBE_SECONDS = 2.0
INTERVAL = 0.25


async def probe_forever(pod_registry: PodRegistry, session: aiohttp.ClientSession) -> None:
    while True:
        await asyncio.gather(*(_probe(pod_registry, session, pod) for pod in pod_registry.probes_due()))
        await asyncio.sleep(INTERVAL)


async def _probe(pod_registry: PodRegistry, session: aiohttp.ClientSession, pod: Pod) -> None:
    try:
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        async with session.get(pod.base_url + "/health", timeout=timeout, allow_redirects=False) as response:
            ok = response.status == 200
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
        ok = False
    pod_registry.report_probe(pod, ok=ok)
