"""The metric families that are read of engines and routers. Pure.

The engine's names are vLLM's own (0.32). A family that a version or a configuration lacks is simply absent: no NIXL
means no transfer times, an older vLLM does not say why requests wait.
"""

from __future__ import annotations

from typing import Final

from phasewise_operator.scaling.signals.exposition import FamilyFilter, MetricType
from phasewise_runtime import contract

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
WAITING_BY_REASON: Final = "vllm:num_requests_waiting_by_reason"
KV_USAGE: Final = "vllm:kv_cache_usage_perc"
TOKENS: Final = "vllm:generation_tokens_total"
QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
PREFILL_TIME: Final = "vllm:request_prefill_time_seconds"
ITL: Final = "vllm:inter_token_latency_seconds"
TRANSFER_TIME: Final = "vllm:nixl_xfer_time_seconds"

CAPACITY: Final = "capacity"
"""The reason for waiting that is the capacity of batch or KV cache; the other is a constraint of the request itself."""
QUEUE: Final = "queue"
"""The phase of contract.METRIC_TTFT_PHASE before the first request."""

ENGINE: Final = FamilyFilter(
    families={
        **dict.fromkeys((RUNNING, WAITING, WAITING_BY_REASON, KV_USAGE), MetricType.GAUGE),
        TOKENS: MetricType.COUNTER,
        **dict.fromkeys((QUEUE_TIME, PREFILL_TIME, ITL, TRANSFER_TIME), MetricType.HISTOGRAM),
    },
    required=RUNNING,
)

ROUTER_GAUGES: Final = (
    contract.METRIC_KV_TRANSFER_OK,
    contract.METRIC_KV_PROVED_AT,
    contract.METRIC_KV_CANARY_BYTES,
    contract.METRIC_KV_PATHS,
    contract.METRIC_KV_FAILED_PATH,
    contract.METRIC_AWAITING,
    contract.METRIC_OVERDUE,
    contract.METRIC_QUEUE_DEPTH,
    contract.METRIC_ACTIVE,
)
ROUTER_COUNTERS: Final = (
    contract.METRIC_ARRIVALS,
    contract.METRIC_SLO_REQUESTS,
    contract.METRIC_REVISION_REQUESTS,
    contract.METRIC_POD_REQUESTS,
    contract.METRIC_POD_INFLIGHT_SECONDS,
    contract.METRIC_POD_BUSY_SECONDS,
)
ROUTER_HISTOGRAMS: Final = (contract.METRIC_TTFT, contract.METRIC_TTFT_PHASE, contract.METRIC_ITL)

ROUTER: Final = FamilyFilter(
    families={
        **dict.fromkeys(ROUTER_GAUGES, MetricType.GAUGE),
        **dict.fromkeys(ROUTER_COUNTERS, MetricType.COUNTER),
        **dict.fromkeys(ROUTER_HISTOGRAMS, MetricType.HISTOGRAM),
    },
    required=contract.METRIC_ARRIVALS,
)


def filter_for(role: str) -> FamilyFilter:
    return ROUTER if role == contract.ROUTER else ENGINE
