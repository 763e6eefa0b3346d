"""Metrics that are computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phasewise_runtime.contract import (
    METRIC_AWAITING,
    METRIC_OVERDUE,
    METRIC_POD_BUSY_SECONDS,
    METRIC_POD_INFLIGHT_SECONDS,
    METRIC_POD_REQUESTS,
)
from phasewise_runtime.router.loads import Loads
from phasewise_runtime.router.pending import PendingRequests

POD_INFLIGHT = "phasewise_router_pod_inflight_requests"


class PendingCollector(Collector):
    def __init__(self, pending: PendingRequests, ttft_target: float, clock: Callable[[], float]) -> None:
        self._pending = pending
        self._ttft_target = ttft_target
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        read_before = self._clock() - self._ttft_target if self._ttft_target else None
        awaiting = GaugeMetricFamily(METRIC_AWAITING, "Requests without a first token, by phase.", labels=["phase"])
        text = "Requests without a first token that have waited longer than the TTFT target."
        overdue = GaugeMetricFamily(METRIC_OVERDUE, text, labels=["phase"])
        for phase, count in self._pending.count(read_before).items():
            awaiting.add_metric([phase], count.awaiting)
            overdue.add_metric([phase], count.overdue)
        yield from (awaiting, overdue)


class LoadsCollector(Collector):
    def __init__(self, loads: Loads, clock: Callable[[], float]) -> None:
        self._loads = loads
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        labels = ("role", "pod")
        inflight = GaugeMetricFamily(POD_INFLIGHT, "Requests in flight to engines, by pod.", labels=labels)
        served = CounterMetricFamily(METRIC_POD_REQUESTS, "Requests that engines served, by pod.", labels=labels)
        text = "Time integral of the requests in flight, by pod, in request-seconds."
        inflight_seconds = CounterMetricFamily(METRIC_POD_INFLIGHT_SECONDS, text, labels=labels)
        text = "Seconds with at least one request in flight, by pod."
        busy_seconds = CounterMetricFamily(METRIC_POD_BUSY_SECONDS, text, labels=labels)
        for role, pod, load in self._loads.settled(self._clock()):
            of = (role, pod)
            inflight.add_metric(of, load.inflight)
            served.add_metric(of, load.succeeded)
            inflight_seconds.add_metric(of, load.inflight_seconds)
            busy_seconds.add_metric(of, load.busy_seconds)
        yield from (inflight, served, inflight_seconds, busy_seconds)
