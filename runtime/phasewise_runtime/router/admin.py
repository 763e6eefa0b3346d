"""Probes, metrics and activity, on a port of their own.

Ready does not ask for engines: traffic wakes a service at zero.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from phasewise_runtime.contract import PATH_ACTIVITY, PATH_LIVE, PATH_METRICS, PATH_READY, PATH_STARTED
from phasewise_runtime.router.activity import Activity, read_query
from phasewise_runtime.router.metrics import Metrics


def build_admin(metrics: Metrics, activity: Activity, not_ready: Callable[[], str | None]) -> web.Application:
    """`not_ready` returns why the router is not ready, or None."""

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def wait(request: web.Request) -> web.Response:
        try:
            since, seconds = read_query(request.query)
        except ValueError as e:
            return web.Response(text=f"{e}\n", status=400)
        return web.Response(text=f"{await activity.other_than(since, seconds)}\n")

    async def close(_: web.Application) -> None:
        activity.close()

    app = web.Application()
    app.on_shutdown.append(close)
    app.router.add_get(PATH_LIVE, live)
    app.router.add_get(PATH_READY, ready)
    app.router.add_get(PATH_STARTED, ready)
    app.router.add_get(PATH_METRICS, page)
    app.router.add_get(PATH_ACTIVITY, wait)
    return app
