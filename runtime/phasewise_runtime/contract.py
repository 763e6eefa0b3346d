"""Names shared by the operator, the launcher and the router: ports, labels, paths, headers, metrics.

Both sides import this module and nothing else of each other. It imports nothing but the standard library, so
that it also runs inside any engine image (Python 3.10 and later). A name here is a promise between processes of
different versions: rename one only together with a migration.
"""

from __future__ import annotations

from typing import Final

# --- API ---------------------------------------------------------------------------------------------------
API_GROUP: Final = "phasewise.dev"
API_VERSION: Final = "v1alpha1"
FIELD_MANAGER: Final = "phasewise"

# --- roles -------------------------------------------------------------------------------------------------
PREFILL: Final = "prefill"
DECODE: Final = "decode"
ROUTER: Final = "router"
ENGINE_ROLES: Final = (PREFILL, DECODE)

# --- labels and annotations --------------------------------------------------------------------------------
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
MANAGED_BY: Final = "phasewise"
OPERATOR_NAME: Final = "phasewise-operator"
"""LABEL_NAME of the operator's pods and of its Lease."""
LABEL_SERVICE: Final = "phasewise.dev/service"
LABEL_ROLE: Final = "phasewise.dev/role"
LABEL_REVISION: Final = "phasewise.dev/revision"
LABEL_FINGERPRINT: Final = "phasewise.dev/kv-fingerprint"
LABEL_GPUS: Final = "phasewise.dev/gpus"
"""GPUs of one pod: a budget counts them also for pods whose spec is no longer known."""
LABEL_LLMD_ROLE: Final = "llm-d.ai/role"
LABEL_LLMD_MODEL: Final = "llm-d.ai/model"
ANNOTATION_INTENT: Final = "phasewise.dev/intent"
ANNOTATION_ACCOUNT: Final = "phasewise.dev/service-account"
ANNOTATION_DESIRED: Final = "phasewise.dev/desired-replicas"
"""On a pool's Deployment: the size of the whole pool. Its own replicas are fewer while a rollout is under way."""
ANNOTATION_SERVED: Final = "phasewise.dev/has-served"
"""On a pool's Deployment: its pods have served, together with those of the other pool."""
ANNOTATION_FAILED: Final = "phasewise.dev/rollout-failed"
"""On a pool's Deployment: when its rollout failed, why in one word, revisions of the spec that it was for, and why in
words. It is not tried again while the spec asks for these revisions."""
ANNOTATION_TEMPLATE: Final = "phasewise.dev/pod-template"
"""On a pool's Deployment: its pod template as it was applied, JSON. It is kept while an upgrade of the operator, or an
edit that needs no new pods, would change it."""
ANNOTATION_DEFAULT_IMAGE: Final = "phasewise.dev/default-engine-image"
"""On a pool's Deployment, where the spec names no engine image: the operator's default when the service was made."""
ANNOTATION_REFRESH: Final = "phasewise.dev/refresh-engines"
"""On an InferenceService: any text; another one than before lets its engines be replaced by what is rendered now. On a
pool's Deployment: a digest of the text for which it was rendered; absent where there is none."""
ANNOTATION_WATCHES: Final = "phasewise.dev/watch-namespaces"
"""On an operator's Lease: the namespaces that its release looks after, comma-separated; empty: all of them."""
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"

# --- ports -------------------------------------------------------------------------------------------------
ENGINE_PORT: Final = 8000
"""vLLM's OpenAI API and /metrics, on the pod's address."""
LAUNCHER_PORT: Final = 8001
"""The launcher's probes, and its metrics followed by the engine's: a scraper needs no way to the engine's API."""
NIXL_SIDE_CHANNEL_PORT: Final = 5600
ROUTER_PORT: Final = 8080
"""The router's OpenAI API."""
ROUTER_ADMIN_PORT: Final = 8081
"""The router's probes and metrics: apart, so that a client can be given the API alone."""
OPERATOR_PORT: Final = 8080
"""The operator's probes and metrics."""

# --- probe paths (launcher, router and operator alike) -----------------------------------------------------
PATH_STARTED: Final = "/startupz"
PATH_LIVE: Final = "/livez"
PATH_READY: Final = "/readyz"
PATH_METRICS: Final = "/metrics"
PATH_ACTIVITY: Final = "/activity"
"""Router, admin port. `?since=N&seconds=S`: answers with the number of arrivals so far as soon as it is not N, or after
S seconds. A scraper of an idle service waits here for the first request instead of polling."""

# --- the launcher, as it is brought into an engine pod -----------------------------------------------------
LAUNCHER_SOURCE: Final = "/opt/phasewise/launcher.pyz"
"""Where the zipapp lies in the runtime image."""
LAUNCHER_DIR: Final = "/phasewise"
"""Where an emptyDir brings it into the engine container."""
SCRATCH_DIR: Final = "/scratch"
"""A writable emptyDir of the engine container: HOME, caches, temporary files (the root file system is read-only)."""
MODEL_CACHE_DIR: Final = "/models"
"""Where fetched weights lie."""
SECRETS_DIR: Final = "/var/run/secrets/phasewise"
"""Where secrets are mounted as files, one folder a secret; never in the environment or in arguments."""
TERMINATION_LOG: Final = "/dev/termination-log"

# --- exit codes of the launcher ----------------------------------------------------------------------------
EXIT_OK: Final = 0
EXIT_ENGINE: Final = 70
"""The engine ended by itself."""
EXIT_CUT_SHORT: Final = 71
"""Stopped with unfinished requests: the time to drain was over, or a second TERM came."""
EXIT_STARTUP: Final = 75
"""The engine did not serve within the time to start."""
EXIT_CONFIG: Final = 78
"""The InferenceService must be changed: another start would end the same way."""

ENV_ENGINE_CONFIG: Final = "PHASEWISE_ENGINE"
"""JSON of phasewise_runtime.engine.config.EngineConfig."""
ENV_POD_IP: Final = "POD_IP"
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_UID: Final = "POD_UID"
ENV_NAMESPACE: Final = "POD_NAMESPACE"

# --- metrics that one side exports and the other reads ------------------------------------------------------
METRIC_KV_TRANSFER_OK: Final = "phasewise_router_kv_transfer_ok"
"""Gauge by engine pod: 1 where KV flows between it and a pod of the other role, 0 where it does with none that was
tried; absent before the first try."""
METRIC_KV_PROVED_AT: Final = "phasewise_router_kv_proved_timestamp_seconds"
"""Gauge by engine pod: Unix time of the last KV transfer of it that was proved, by a canary or by a request."""
METRIC_KV_CANARY_BYTES: Final = "phasewise_router_kv_canary_bytes"
"""Gauge by engine pod: bytes of KV that the connector moved for the canary that proved the pod."""
METRIC_KV_PATHS: Final = "phasewise_router_kv_paths"
"""Gauge by state, one of KV_PATH_STATES: pairs of a prefill and a decode pod that can read each other's KV."""
METRIC_KV_FAILED_PATH: Final = "phasewise_router_kv_failed_path"
"""Gauge by prefill, decode (names of pods) and reason: 1 for each pair of pods whose KV transfer fails now."""
KV_PATH_STATES: Final = ("proved", "unproved", "failed")
METRIC_REVISION_REQUESTS: Final = "phasewise_router_revision_slo_requests_total"
"""Counter of requests by role, revision of the pod that served them in that role, and result: one of SLO_RESULTS."""
METRIC_ENGINE_UP: Final = "phasewise_launcher_engine_up"
"""Gauge of the launcher, on a line without labels: 1 where the engine's metrics follow in the same exposition, 0 where
they could not be read. A launcher without it does not pass them on."""
METRIC_TTFT: Final = "phasewise_router_ttft_seconds"
"""Histogram of requests."""
METRIC_TTFT_PHASE: Final = "phasewise_router_ttft_phase_seconds"
"""Histogram, by phase: queue, prefill, decode_first_token."""
METRIC_ITL: Final = "phasewise_router_itl_seconds"
"""Histogram of requests: the mean gap of each."""
METRIC_SLO_REQUESTS: Final = "phasewise_router_slo_requests_total"
"""Counter of requests, by result: one of SLO_RESULTS."""
METRIC_ARRIVALS: Final = "phasewise_router_arrivals_total"
"""Counter of requests whose body was read and is valid, before they wait for anything."""
METRIC_AWAITING: Final = "phasewise_router_awaiting_first_token"
"""Gauge of requests without a first token, by phase: one of WAIT_PHASES."""
METRIC_OVERDUE: Final = "phasewise_router_overdue_first_token"
"""Gauge by phase: those of METRIC_AWAITING that have waited longer than the TTFT target."""
METRIC_QUEUE_DEPTH: Final = "phasewise_router_queue_depth"
METRIC_ACTIVE: Final = "phasewise_router_active_requests"
METRIC_POD_REQUESTS: Final = "phasewise_router_pod_requests_total"
"""Counter of prefill or decode requests that the pod served, by role and pod."""
METRIC_POD_INFLIGHT_SECONDS: Final = "phasewise_router_pod_inflight_seconds_total"
"""Counter, by role and pod: the time integral of the requests in flight to the pod, in request-seconds."""
METRIC_POD_BUSY_SECONDS: Final = "phasewise_router_pod_busy_seconds_total"
"""Counter, by role and pod: seconds with at least one request of this router in flight to the pod."""
SLO_MET: Final = "met"
SLO_TTFT_MISSED: Final = "ttft_missed"
SLO_ITL_MISSED: Final = "itl_missed"
SLO_BOTH_MISSED: Final = "both_missed"
SLO_FAILED: Final = "failed"
"""No complete answer, for a reason that is not the client's."""
SLO_RESULTS: Final = (SLO_MET, SLO_TTFT_MISSED, SLO_ITL_MISSED, SLO_BOTH_MISSED, SLO_FAILED)
WAIT_PHASES: Final = ("queue", "prefill", "decode")
"""What a request without a first token waits for: admission or a pod, its prefill request, its decode request."""

# --- headers -----------------------------------------------------------------------------------------------
HEADER_REQUEST_ID: Final = "X-Request-Id"
HEADER_SERVER_TIMING: Final = "Server-Timing"
