"""EngineConfig -> the vLLM command of one pod: argv and environment. Pure: the launcher runs it, tests parse it.

Phasewise's own settings, then defaults that the user's `spec.engine.args` may replace. An argument that Phasewise
owns is refused, so that a prefill or decode engine without KV transfer cannot be written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from phasewise_runtime import contract
from phasewise_runtime.engine.arguments import check_user_arguments, to_argv
from phasewise_runtime.engine.config import ArgValue, EngineConfig
from phasewise_runtime.model_uri import ModelLocation

MODULE: Final = "vllm.entrypoints.openai.api_server"

KEEP_ALIVE_SECONDS: Final = 75
"""Above the router's idle time, so that the router and never the engine closes an idle connection."""

STOP_SECONDS: Final = 20
"""An idle engine ends within some 5 s of its TERM; one that does not is killed."""

_CPU_KV_CACHE_BYTES: Final = 1 << 30
_BATCH_STEP: Final = 256
_BATCH_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {"gpu": (512, 16384), "cpu": (256, 2048)}
_TOKENS_PER_MS: Final[Mapping[str, int]] = {"gpu": 32, "cpu": 8}


@dataclass(frozen=True)
class PodEnvironment:
    """The pod as the engine's command depends on it; `environment` detects it."""

    ip: str
    cpus: int = 1
    """Threads that the engine may use on CPU."""
    python: str = "python3"
    scratch: str = contract.SCRATCH_DIR
    models: str = contract.MODEL_CACHE_DIR
    plugin_path: str | None = None
    """Entry of PYTHONPATH that carries the engine plugin."""


@dataclass(frozen=True)
class EngineCommand:
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Set always."""
    defaults: Mapping[str, str] = field(default_factory=dict[str, str])
    """Set where the container's environment does not say otherwise."""
    python_path: str | None = None
    """Put before the entries that PYTHONPATH already has."""

    def over(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The engine's whole environment, given the container's."""
        merged = {**self.defaults, **inherited, **self.environment}
        if self.python_path is not None:
            merged["PYTHONPATH"] = ":".join(filter(None, (self.python_path, inherited.get("PYTHONPATH"))))
        return merged


def engine_command(config: EngineConfig, model: ModelLocation, pod: PodEnvironment) -> EngineCommand:
    """The vLLM command of this pod; ConfigError where the user sets an argument that Phasewise owns."""
    user = check_user_arguments(config.args)
    args = {**_replaceable(config), **user, **_owned(config, model)}
    return EngineCommand(
        (pod.python, "-m", MODULE, *to_argv(args)),
        _environment(config, model, pod),
        _environment_defaults(config, pod),
        pod.plugin_path if config.device == "cpu" else None,
    )


def shutdown_timeout(config: EngineConfig) -> int:
    """Seconds vLLM may take after TERM: above the longest generation and, after it, the lease of its KV blocks."""
    return math.ceil(config.max_generation_seconds + config.kv_lease_seconds)


def termination_grace_seconds(config: EngineConfig) -> int:
    """terminationGracePeriodSeconds of the pod: routers stop choosing it, the last request ends, the engine stops."""
    return math.ceil(config.settle_seconds) + shutdown_timeout(config) + STOP_SECONDS + 10


def batched_tokens(itl_target_ms: float, device: str) -> int:
    """--max-num-batched-tokens of an engine that does both phases: tokens whose step fits into one ITL target.

    A step carries the running decodes and a chunk of prefill, so that the chunk decides the gap between tokens. The
    rule counts 32 tokens a millisecond on a GPU and 8 on CPU (an 8B and a tiny model's prefill speed), in steps of
    256 and within bounds that keep batching useful; `max-num-batched-tokens` in spec.engine.args replaces it.
    """
    low, high = _BATCH_BOUNDS[device]
    fits = int(itl_target_ms * _TOKENS_PER_MS[device]) // _BATCH_STEP * _BATCH_STEP
    return min(max(fits, low), high)


def _owned(config: EngineConfig, model: ModelLocation) -> dict[str, ArgValue]:
    args: dict[str, ArgValue] = {
        "host": "0.0.0.0",
        "port": config.engine_port,
        "model": model.reference,
        "served-model-name": config.model_name,
        "tensor-parallel-size": config.tensor,
        "pipeline-parallel-size": config.pipeline,
        "shutdown-timeout": shutdown_timeout(config),
    }
    if model.revision is not None:
        args["revision"] = model.revision
    if config.disaggregated:
        args["kv-transfer-config"] = _kv_transfer(config)
    return args


def _kv_transfer(config: EngineConfig) -> str:
    value: dict[str, object] = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if config.role == contract.PREFILL else "kv_consumer",
        "kv_connector_extra_config": {"kv_lease_duration": math.ceil(config.kv_lease_seconds)},
    }
    if config.device == "cpu":
        value["kv_buffer_device"] = "cpu"
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _replaceable(config: EngineConfig) -> dict[str, ArgValue]:
    args: dict[str, ArgValue] = {"disable-access-log-for-endpoints": "/health,/metrics"}
    if config.device == "cpu":
        args["enforce-eager"] = True
        args["distributed-executor-backend"] = "uni" if _is_one_process(config) else "mp"
        args["kv-cache-memory-bytes"] = _CPU_KV_CACHE_BYTES
    if not config.disaggregated and config.itl_target_ms is not None:
        args["max-num-batched-tokens"] = batched_tokens(config.itl_target_ms, config.device)
    return args


def _is_one_process(config: EngineConfig) -> bool:
    return config.tensor * config.pipeline == 1


def _environment(config: EngineConfig, model: ModelLocation, pod: PodEnvironment) -> dict[str, str]:
    env = {
        "HOME": pod.scratch,
        "TMPDIR": f"{pod.scratch}/temporary",
        "XDG_CACHE_HOME": f"{pod.scratch}/cache",
        "VLLM_CACHE_ROOT": f"{pod.scratch}/cache/vllm",
        "HF_HOME": f"{pod.scratch if model.local else pod.models}/huggingface",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_SECONDS),
    }
    if config.disaggregated:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = pod.ip
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(config.nixl_port)
    if config.device == "cpu":
        env["VLLM_TARGET_DEVICE"] = "cpu"
    if model.local:
        env["HF_HUB_OFFLINE"] = "1"
    return env


def _environment_defaults(config: EngineConfig, pod: PodEnvironment) -> dict[str, str]:
    # torch asks for the user's name, which a container's numeric user has none of.
    env = {"VLLM_NO_USAGE_STATS": "1", "USER": "phasewise"}
    if config.device == "cpu":
        threads = str(max(1, pod.cpus))
        # Compiling takes longer than a small model's whole run, and one process instead of two halves memory.
        env |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": threads}
        env["UCX_TLS"] = "tcp,sm,self"
        if _is_one_process(config):
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return env
