"""The operator's own metrics. Imports prometheus-client and scaling's part of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from phasewise_operator.scaling.metrics import ScalingMetrics


class Metrics:
    """One registry a process; tests make their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.leading = Gauge("phasewise_operator_leading", "1 while this replica leads.", registry=self.registry)
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
        self.scaling = ScalingMetrics(self.registry)
