"""The scaling loop's part of the operator's own metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from phasewise_operator.scaling.types import PoolState, Signals, SizeDecision

SERVICE = ("namespace", "service")


class ScalingMetrics:
    """What was measured of each service, and what was decided on it. Series go with their service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"phasewise_{name}", text, (*SERVICE, *labels), registry=registry)

        self._ttft = gauge("service_ttft_seconds", "TTFT at the quantile that slo.attainment names, last 30 s.")
        self._itl = gauge("service_itl_seconds", "ITL at the quantile that slo.attainment names, last 30 s.")
        self._attainment = gauge("service_attainment", "Share of requests that met both targets, last 30 s.")
        self._part = gauge("service_ttft_phase_seconds", "Mean of each phase of TTFT, last 30 s.", "phase")
        self._arrivals = gauge(
            "service_arrivals_per_second", "Requests per second that arrive at the routers, last 10 s."
        )
        self._coverage = gauge("scaling_coverage", "Share of ready pods that could be scraped.", "role")
        self._sufficient = gauge("scaling_data_sufficient", "1 where the data suffice to size a pool.", "role")
        self._limited = gauge("scaling_limited", "1 where a bound, budget or the scheduler is in the way.", "role")
        self._replicas = gauge("pool_replicas", "Replicas of a pool: desired, ready.", "role", "state")
        self._gauges = (
            *(self._ttft, self._itl, self._attainment, self._part, self._arrivals),
            *(self._coverage, self._sufficient, self._limited, self._replicas),
        )
        labels = (*SERVICE, "role", "direction", "reason")
        self.decisions = Counter("phasewise_scaling_decisions", "Changes of size.", labels, registry=registry)
        self.scrape_errors = Counter(
            "phasewise_scrape_errors", "Scrapes that failed, by reason.", ["role", "reason"], registry=registry
        )
        self.lag = Gauge(
            "phasewise_scaling_lag_seconds",
            "How late rounds begin, averaged; NaN until one has followed another. Above 0.1 they are made less often.",
            registry=registry,
        )
        self.rounds = Histogram(
            "phasewise_scaling_round_seconds",
            "One round over one service: scrape, signals, decision.",
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2),
            registry=registry,
        )

    def update(
        self,
        namespace: str,
        service: str,
        pools: Sequence[PoolState],
        signals: Signals,
        decisions: Mapping[str, SizeDecision],
    ) -> None:
        """What is unknown has no series: a gauge that stays at its last value would look like a measurement."""
        who = (namespace, service)
        ttft, itl = signals.ttft, signals.itl
        _set(self._ttft, who, ttft.at_attainment if ttft else None)
        _set(self._itl, who, itl.at_attainment if itl else None)
        _set(self._attainment, who, signals.outcomes.attainment)
        _set(self._arrivals, who, signals.arrivals)
        for part, seconds in vars(signals.parts).items():
            _set(self._part, (*who, part), seconds)
        _set(self._coverage, (*who, "router"), signals.routers.share)
        for pool in pools:
            measured = signals.pools.get(pool.role)
            decision = decisions.get(pool.role)
            _set(self._coverage, (*who, pool.role), measured.coverage.share if measured else None)
            _set(self._sufficient, (*who, pool.role), float(decision.sufficient) if decision else None)
            _set(self._limited, (*who, pool.role), float(bool(decision.limit)) if decision else None)
            _set(self._replicas, (*who, pool.role, "desired"), decision.desired if decision else pool.desired)
            _set(self._replicas, (*who, pool.role, "ready"), pool.ready)

    def forget(self, namespace: str, service: str) -> None:
        for metric in (*self._gauges, self.decisions):
            metric.remove_by_labels({"namespace": namespace, "service": service})


def _set(gauge: Gauge, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        gauge.labels(*labels).set(value)
        return
    with contextlib.suppress(KeyError):
        gauge.remove(*labels)
