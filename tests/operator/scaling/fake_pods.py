"""Pods as the scaling loop sees them: servers on loopback addresses that answer with the samples of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from phasewise_runtime import contract


@dataclass
class FakePod:
    """Answers as a router or an engine; `lines` are its samples, `status` what it answers with."""

    lines: dict[str, float] = field(default_factory=dict[str, float])
    status: int = 200
    scrapes: int = 0
    waits: int = 0
    request_came: asyncio.Event = field(default_factory=asyncio.Event)

    async def metrics(self, _: web.Request) -> web.Response:
        self.scrapes += 1
        text = "".join(f"{name} {value}\n" for name, value in self.lines.items())
        return web.Response(text=text, status=self.status)

    async def wait(self, request: web.Request) -> web.Response:
        self.waits += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.request_came.wait(), float(request.query["seconds"]))
        return web.Response(text=str(int(self.lines[contract.METRIC_ARRIVALS])))


ENGINE = {
    f'{name}{{engine="0"}}': 0.0
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
}
ROUTER = {
    contract.METRIC_ARRIVALS: 0.0,
    contract.METRIC_ACTIVE: 0.0,
    contract.METRIC_QUEUE_DEPTH: 0.0,
    **{f'{contract.METRIC_AWAITING}{{phase="{p}"}}': 0.0 for p in contract.WAIT_PHASES},
    **{f'{contract.METRIC_OVERDUE}{{phase="{p}"}}': 0.0 for p in contract.WAIT_PHASES},
}


@asynccontextmanager
async def serving(pod: FakePod, host: str, port: int) -> AsyncGenerator[None]:
    app = web.Application()
    app.router.add_get(contract.PATH_METRICS, pod.metrics)
    app.router.add_get(contract.PATH_ACTIVITY, pod.wait)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        yield
    finally:
        pod.request_came.set()
        await runner.cleanup()
