"""The operator's own metrics, and the HTTP server that shows them and answers the kubelet's probes. I/O."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from phasewise_operator.scaling.metrics import ScalingMetrics
from phasewise_runtime import contract


class Metrics:
    """One registry a process; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.leading = Gauge("phasewise_operator_leading", "1 while this replica leads.", registry=self.registry)
        self.overlapping_releases = Gauge(
            "phasewise_operator_overlapping_releases",
            "Leases of other releases that look after the same namespaces: above 0 this release stands by.",
            registry=self.registry,
        )
        self.services = Gauge("phasewise_operator_services", "InferenceServices known.", registry=self.registry)
        self.reconcile_seconds = Histogram(
            "phasewise_operator_reconcile_seconds",
            "Duration of one pass over one service.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.reconciles = Counter(
            "phasewise_operator_reconciles",
            "Passes by result: ok, incomplete (a child could not be written), error.",
            ["result"],
            registry=self.registry,
        )
        self.watch_errors = Counter(
            "phasewise_operator_watch_errors",
            "Lists and watches that failed, and are tried again; namespace is empty where all are watched.",
            ["kind", "namespace", "reason"],
            registry=self.registry,
        )
        self.scaling = ScalingMetrics(self.registry)

    def count_watch_error(self, kind: str, namespace: str, reason: str) -> None:
        self.watch_errors.labels(kind, namespace, reason).inc()


async def start_server(port: int, metrics: Metrics, health: Callable[[], tuple[bool, str]]) -> web.AppRunner:
    """Serve until the runner is cleaned up. `health`: whether the operator lives, and a text for people.

    Standing by is ready too: a rollout must not wait for the Lease.
    """

    async def probe(_request: web.Request) -> web.Response:
        lives, text = health()
        return web.Response(status=200 if lives else 500, text=f"{text}\n")

    async def exposition(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get(contract.PATH_LIVE, probe)
    app.router.add_get(contract.PATH_READY, probe)
    app.router.add_get(contract.PATH_METRICS, exposition)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
