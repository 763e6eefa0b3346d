"""The router's metrics, all under `phasewise_router_`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from phasewise_runtime.contract import (
    ENGINE_ROLES,
    METRIC_ACTIVE,
    METRIC_ARRIVALS,
    METRIC_ITL,
    METRIC_QUEUE_DEPTH,
    METRIC_REVISION_REQUESTS,
    METRIC_SLO_REQUESTS,
    METRIC_TTFT,
    METRIC_TTFT_PHASE,
    SLO_RESULTS,
)

PREFIX = "phasewise_router"

TTFT_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0),
    *(4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0),
)
ITL_BUCKETS = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06, 0.08, 0.1),
    *(0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0),
)


class Metrics:
    """One registry and its metrics."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        ProcessCollector(registry=r)
        PlatformCollector(registry=r)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_full(name), text, labels, registry=r)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_full(name), text, labels, registry=r)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(_full(name), text, labels, buckets=buckets, registry=r)

        self.ttft = histogram(METRIC_TTFT, "Request read to first output token, as a client sees it.", TTFT_BUCKETS)
        text = "TTFT by phase: queue, prefill (whose KV was used), decode_first_token (decode request to first token)."
        self.ttft_phase = histogram(METRIC_TTFT_PHASE, text, TTFT_BUCKETS, "phase")
        self.itl = histogram(METRIC_ITL, "Of a request: mean gap of its tokens after the first.", ITL_BUCKETS)
        self.gap = histogram("inter_token_gap_seconds", "Single gaps between streamed events.", ITL_BUCKETS)
        self.arrivals = counter(METRIC_ARRIVALS, "Requests whose body was read and is valid.")
        self.slo_requests = counter(METRIC_SLO_REQUESTS, "Requests judged by the latency targets.", "result")
        text = "Requests judged by the latency targets, by the revisions of the pods that served them."
        self.revision_requests = counter(METRIC_REVISION_REQUESTS, text, "role", "revision", "result")
        self.requests = counter("requests", "Requests answered, by outcome.", "endpoint", "outcome", "code")
        self.retries = counter("retries", "Requests to engines that failed and were retried.", "role", "reason")
        self.inflight = gauge("inflight_requests", "Requests in flight to engines.", "role")
        self.active = gauge(METRIC_ACTIVE, "Requests admitted and not yet ended.")
        self.queue_depth = gauge(METRIC_QUEUE_DEPTH, "Requests that wait for an engine pod or a free place.")
        self.body_bytes = gauge("body_bytes", "Bytes of the request bodies held in memory.")
        self.decode_only = counter("decode_only", "Requests that were prefilled by their decode pod.", "reason")
        self.engine_died_requests = counter("engine_died_requests", "Requests with which two engine processes ended.")
        text = "Requests whose prefill and decode engine counted different prompt tokens."
        self.prompt_mismatches = counter("prompt_token_mismatches", text, "fingerprint")
        self.kv_params_missing = counter("kv_params_missing", "Prefill answers without KV parameters.", "pod")
        self.kv_canaries = counter("kv_canaries", "Canaries that tried a KV transfer, by result.", "result")
        self.ejections = counter("ejections", "Pods ejected after failures.", "role", "pod", "reason")
        self.pods = gauge("pods", "Engine pods by role and state.", "role", "state")
        self.unmeasured = counter("unmeasured_requests", "Answered requests without TTFT or ITL.", "metric", "reason")
        self.input_tokens = counter("input_tokens", "Prompt tokens, from usage.")
        self.cached_tokens = counter("cached_input_tokens", "Prompt tokens found in the prefix cache, from usage.")
        self.output_tokens = counter("output_tokens", "Output tokens, from usage.")
        self.discovery_up = gauge("discovery_up", "1 while the list of pods is being kept up to date.")
        self.discovery_errors = counter("discovery_errors", "Failures to list or watch pods.", "reason")
        self.stream_errors = counter("stream_errors", "Streams ended by an explicit error event.", "reason")
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Series whose labels are known: a rise from 0 is seen in them from the first request on."""
        for result in SLO_RESULTS:
            self.slo_requests.labels(result)
        for role in ENGINE_ROLES:
            self.inflight.labels(role)
        for phase in ("queue", "prefill", "decode_first_token"):
            self.ttft_phase.labels(phase)

    def forget_pod(self, name: str) -> None:
        """Drop the series of a pod that is gone: a pool that scales up and down would otherwise fill the exposition."""
        for metric in (self.kv_params_missing, self.ejections):
            metric.remove_by_labels({"pod": name})

    def forget_revision(self, role: str, revision: str) -> None:
        self.revision_requests.remove_by_labels({"role": role, "revision": revision})


def _full(name: str) -> str:
    """The contract's names, which other processes read, are complete; the other names lack the prefix."""
    return name if name.startswith(PREFIX) else f"{PREFIX}_{name}"
