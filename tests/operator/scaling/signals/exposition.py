"""Expositions for the tests: a router's in the form that prometheus-client writes, an engine's by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from phasewise_operator.scaling.signals import families
from phasewise_operator.scaling.signals.exposition import FamilyFilter, ParsedMetrics, parse
from phasewise_runtime import contract

EXPOSITIONS = Path(__file__).parent / "expositions"
BUCKETS = (0.1, 0.5, 1.0, 2.0)
GAUGES = {
    "running": f'{families.RUNNING}{{engine="0"}}',
    "waiting": f'{families.WAITING}{{engine="0"}}',
    "blocked": f'{families.WAITING_BY_REASON}{{engine="0",reason="{families.CAPACITY}"}}',
    "kv": f'{families.KV_USAGE}{{engine="0"}}',
}


def read(body: bytes, desired: FamilyFilter) -> ParsedMetrics:
    parsed = parse(body, desired)
    assert isinstance(parsed, ParsedMetrics), parsed
    return parsed


class Router:
    """Counts as a router does; `metrics()` is what it would answer now."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        self.arrivals = Counter(contract.METRIC_ARRIVALS, "Requests read.", registry=r)
        self.results = Counter(contract.METRIC_SLO_REQUESTS, "Requests judged.", ["result"], registry=r)
        labels = ["role", "revision", "result"]
        self.by_revision = Counter(contract.METRIC_REVISION_REQUESTS, "Judged, by revision.", labels, registry=r)
        self.awaiting = Gauge(contract.METRIC_AWAITING, "Without a first token.", ["phase"], registry=r)
        self.overdue = Gauge(contract.METRIC_OVERDUE, "Of them, too late already.", ["phase"], registry=r)
        self.queued = Gauge(contract.METRIC_QUEUE_DEPTH, "Waiting.", registry=r)
        self.active = Gauge(contract.METRIC_ACTIVE, "Requests in flight.", registry=r)
        self.kv_transfer = Gauge(contract.METRIC_KV_TRANSFER_OK, "Last KV transfer.", ["pod"], registry=r)
        self.kv_proved_at = Gauge(contract.METRIC_KV_PROVED_AT, "Last proof.", ["pod"], registry=r)
        self.kv_bytes = Gauge(contract.METRIC_KV_CANARY_BYTES, "Of the canary.", ["pod"], registry=r)
        self.kv_paths = Gauge(contract.METRIC_KV_PATHS, "Pairs of pods.", ["state"], registry=r)
        self.kv_failed = Gauge(contract.METRIC_KV_FAILED_PATH, "Failed.", ["prefill", "decode", "reason"], registry=r)
        pod = ["role", "pod"]
        self.requests = Counter(contract.METRIC_POD_REQUESTS, "Requests.", pod, registry=r)
        self.inflight = Counter(contract.METRIC_POD_INFLIGHT_SECONDS, "Request-seconds.", pod, registry=r)
        self.busy = Counter(contract.METRIC_POD_BUSY_SECONDS, "Busy seconds.", pod, registry=r)
        self.ttft = Histogram(contract.METRIC_TTFT, "TTFT.", buckets=BUCKETS, registry=r)
        self.phase = Histogram(contract.METRIC_TTFT_PHASE, "Of TTFT.", ["phase"], buckets=BUCKETS, registry=r)
        self.itl = Histogram(contract.METRIC_ITL, "ITL.", buckets=BUCKETS, registry=r)

    def tries_kv(self, proved: int = 0, unproved: int = 0, failed: int = 0, **pods: bool) -> None:
        """What a router that proves pods exports after tries; `pods`: whether KV flows."""
        for state, count in zip(contract.KV_PATH_STATES, (proved, unproved, failed), strict=True):
            self.kv_paths.labels(state).set(count)
        for pod, flows in pods.items():
            self.kv_transfer.labels(pod).set(flows)

    def body(self) -> bytes:
        return generate_latest(self.registry)

    def metrics(self) -> ParsedMetrics:
        return read(self.body(), families.ROUTER)


class Engine:
    """What scaling scrapes of an engine."""

    def __init__(self, **gauges: float) -> None:
        self.gauges = gauges
        self.tokens = 0.0
        self.seconds: dict[str, list[float]] = {}

    def observe(self, family: str, *seconds: float) -> None:
        self.seconds.setdefault(family, []).extend(seconds)

    def metrics(self) -> ParsedMetrics:
        text = "".join(f"{GAUGES[name]} {value}\n" for name, value in {"running": 0.0, **self.gauges}.items())
        text += f'{families.TOKENS}{{engine="0"}} {self.tokens}\n'
        text += "".join(_histogram(family, seconds) for family, seconds in self.seconds.items())
        return read(text.encode(), families.ENGINE)


def _histogram(family: str, seconds: Sequence[float]) -> str:
    below = {str(bound): sum(one <= bound for one in seconds) for bound in BUCKETS} | {"+Inf": len(seconds)}
    buckets = "".join(f'{family}_bucket{{le="{bound}"}} {count}\n' for bound, count in below.items())
    return f"{buckets}{family}_count {len(seconds)}\n{family}_sum {sum(seconds)}\n"
