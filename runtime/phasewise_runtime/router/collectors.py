"""Metrics that are computed at each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phasewise_runtime.contract import (
    METRIC_AWAITING,
    METRIC_KV_CANARY_BYTES,
    METRIC_KV_FAILED_PATH,
    METRIC_KV_PATHS,
    METRIC_KV_PROVED_AT,
    METRIC_KV_TRANSFER_OK,
    METRIC_OVERDUE,
    METRIC_POD_BUSY_SECONDS,
    METRIC_POD_INFLIGHT_SECONDS,
    METRIC_POD_REQUESTS,
)
from phasewise_runtime.router.kv_registry import KvRegistry
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


class KvCollector(Collector):
    def __init__(self, kv: KvRegistry, clock: Callable[[], float]) -> None:
        self._kv = kv
        self._unix = time.time() - clock()
        """Read once: a moment that is exported again must not look like another one."""

    def collect(self) -> Iterator[Metric]:
        text = "1: KV flows between the pod and one of the other role; 0: with none that was tried."
        ok = GaugeMetricFamily(METRIC_KV_TRANSFER_OK, text, labels=["pod"])
        text = "Unix time of the pod's last proved KV transfer."
        proved_at = GaugeMetricFamily(METRIC_KV_PROVED_AT, text, labels=["pod"])
        text = "Bytes of KV that the connector moved for the canary that proved the pod."
        canary_bytes = GaugeMetricFamily(METRIC_KV_CANARY_BYTES, text, labels=["pod"])
        for state in self._kv.pods.values():
            name = [state.pod.name]
            if state.proved or state.failed:
                ok.add_metric(name, bool(state.proved))
            if state.proved_at is not None:
                proved_at.add_metric(name, self._unix + state.proved_at)
            if state.bytes is not None:
                canary_bytes.add_metric(name, state.bytes)
        text = "Pairs of a prefill and a decode pod that can read each other's KV, by state."
        paths = GaugeMetricFamily(METRIC_KV_PATHS, text, labels=["state"])
        for path_state, count in self._kv.counts().items():
            paths.add_metric([path_state], count)
        text = "1 for each pair of pods whose KV transfer fails now."
        failed = GaugeMetricFamily(METRIC_KV_FAILED_PATH, text, labels=["prefill", "decode", "reason"])
        for prefill, decode, reason in self._kv.failures():
            failed.add_metric([prefill.name, decode.name, reason], 1)
        yield from (ok, proved_at, canary_bytes, paths, failed)
