"""The operator's probes and metrics over HTTP. Imports metrics only."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from phasewise_operator.metrics import Metrics
from phasewise_runtime import contract


async def start_server(port: int, metrics: Metrics) -> web.AppRunner:
    """Serve until the runner is cleaned up. Standing by is ready too: a rollout must not wait for the Lease."""

    async def ok(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get(contract.PATH_LIVE, ok)
    app.router.add_get(contract.PATH_READY, ok)
    app.router.add_get(contract.PATH_METRICS, page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
