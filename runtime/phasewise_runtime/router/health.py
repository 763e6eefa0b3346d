"""Active probes of ejected pods: whether one goes half-open. Pods that serve are not probed."""

from __future__ import annotations

import asyncio

from phasewise_runtime.router.engine_client import EngineClient
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import Pod

PROBE_SECONDS = 2.0
INTERVAL = 0.25


async def probe_forever(pod_registry: PodRegistry, engine_client: EngineClient) -> None:
    async def probe(pod: Pod) -> None:
        pod_registry.report_probe(pod, ok=await engine_client.is_healthy(pod, PROBE_SECONDS))

    while True:
        await asyncio.gather(*(probe(pod) for pod in pod_registry.probes_due()))
        await asyncio.sleep(INTERVAL)
