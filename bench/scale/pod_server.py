"""Answers at every pod's address: an idle engine's and router's metrics, and the routers' long poll of arrivals.

Runs in the control plane's network namespace, where every pod's address is local.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from bench.scrape import sample_pages

from phasewise_operator.scaling.scrape import PORTS
from phasewise_runtime import contract

LONGEST_POLL = 60.0
BACKLOG = 4096


def application(page: bytes) -> web.Application:
    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def activity(request: web.Request) -> web.Response:
        """No request ever arrives."""
        await asyncio.sleep(min(LONGEST_POLL, float(request.query.get("seconds", LONGEST_POLL))))
        return web.Response(text=request.query.get("since", "0"))

    app = web.Application()
    app.router.add_get(contract.PATH_METRICS, metrics)
    app.router.add_get(contract.PATH_ACTIVITY, activity)
    return app


async def serve() -> None:
    pages = sample_pages()
    by_port = {port: pages[role] for role, port in PORTS.items() if role in pages}
    for port, page in by_port.items():
        runner = web.AppRunner(application(page), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", port, backlog=BACKLOG).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
