"""The user's vLLM arguments: refuses those that Phasewise owns, and writes the rest as argv. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from phasewise_runtime.engine.config import ArgValue, ConfigError

_PARALLELISM: Final = "set parallelism.tensor and parallelism.pipeline of spec.prefill and spec.decode instead"
_REPLICAS: Final = "Phasewise runs one engine a pod: set replicas of spec.prefill and spec.decode instead"
_ADDRESS: Final = "Phasewise sets the engine's address, which its probes and router rely on; leave it out"
_NO_TLS: Final = "the engine speaks HTTP inside the cluster; terminate TLS in front of the router and leave it out"
_AS_FILE: Final = "a secret must not stand in an argument: "
_TRANSFER: Final = "Phasewise wires the KV transfer: add or leave out spec.prefill instead"

OWNED: Final[Mapping[str, str]] = {
    "api-key": _AS_FILE + "set spec.router.apiKeys instead",
    "api-server-count": _REPLICAS,
    "config": "write its contents as single entries of spec.engine.args instead",
    "device-ids": "Kubernetes hands out the devices: set accelerator of the pool instead",
    "disable-log-stats": "scaling and status are computed from the engine's metrics; leave it out",
    "download-dir": "spec.model.uri says where the weights lie: pvc://claim/path keeps them; leave it out",
    "grpc": _ADDRESS,
    "headless": _REPLICAS,
    "hf-token": _AS_FILE + "set spec.model.secretRef instead",
    "host": _ADDRESS,
    "kv-transfer-config": _TRANSFER,
    "master-addr": _REPLICAS,
    "master-port": _REPLICAS,
    "model": "set spec.model.uri instead",
    "nnodes": _REPLICAS,
    "node-rank": _REPLICAS,
    "pipeline-parallel-size": _PARALLELISM,
    "port": _ADDRESS,
    "prefill-context-parallel-size": _PARALLELISM,
    "revision": "write it in spec.model.uri instead: hf://org/name@revision",
    "root-path": _ADDRESS,
    "served-model-name": "set spec.model.name instead",
    "shutdown-timeout": "set spec.maxGeneration instead",
    "tensor-parallel-size": _PARALLELISM,
    "uds": _ADDRESS,
}
_OWNED_FAMILIES: Final[Mapping[str, str]] = {"data-parallel-": _REPLICAS, "ssl-": _NO_TLS}

KV_NEUTRAL_ARGS: Final = frozenset(
    {
        "async-scheduling",
        "chat-template",
        "compilation-config",
        "cudagraph-capture-sizes",
        "distributed-executor-backend",
        "download-dir",
        "enable-auto-tool-choice",
        "enable-chunked-prefill",
        "enable-log-requests",
        "enable-prompt-tokens-details",
        "enforce-eager",
        "gpu-memory-utilization",
        "kv-cache-memory-bytes",
        "load-format",
        "max-logprobs",
        "max-model-len",
        "max-num-batched-tokens",
        "max-num-seqs",
        "num-gpu-blocks-override",
        "reasoning-parser",
        "scheduling-policy",
        "tool-call-parser",
        "uvicorn-log-level",
    }
)
"""Engine arguments known not to change what a KV block means. Any other may, and then a pair gives wrong answers."""


def check_user_arguments(args: Mapping[str, Any]) -> dict[str, ArgValue]:
    """The user's arguments under their canonical names, or ConfigError with the field to use instead.

    Numbers in a list become text, and nested settings become JSON text, as vLLM reads them from its command line.
    """
    canonical: dict[str, ArgValue] = {}
    for written, given in args.items():
        value = _plain(given)
        name = written.replace("_", "-")
        if name.startswith("-") or "=" in name or any(c.isspace() for c in name):
            raise ConfigError(f"engine argument {written!r}: write the name without dashes, and its value as the value")
        if reason := _owner(name):
            raise ConfigError(f"engine argument {written!r}: {reason}")
        if isinstance(value, list) and any(item.startswith("-") for item in value):
            raise ConfigError(f"engine argument {written!r}: an item must not start with a dash; give it its own entry")
        if any("\0" in text for text in (value if isinstance(value, list) else [str(value)])):
            raise ConfigError(f"engine argument {written!r}: no command line can have a NUL character: take it out")
        if name in canonical:
            raise ConfigError(f"engine argument {written!r} is there twice: keep one spelling")
        canonical[name] = value
    return canonical


def _plain(value: Any) -> ArgValue:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, list):
        return [str(item) for item in cast("list[object]", value)]
    return value


def _owner(name: str) -> str | None:
    """Why Phasewise owns this argument. vLLM also reads `a.b` as a key inside `a`, and an unambiguous beginning."""
    base = name.partition(".")[0].removeprefix("no-")
    for owned, reason in OWNED.items():
        if owned.startswith(base):
            return reason
    for family, reason in _OWNED_FAMILIES.items():
        if base.startswith(family) or family.startswith(base):
            return reason
    return None


def to_argv(args: Mapping[str, ArgValue]) -> list[str]:
    """argv in the order of names, so that equal arguments give an equal command."""
    return [part for name in sorted(args) for part in _flag(name, args[name])]


def _flag(name: str, value: ArgValue) -> Iterator[str]:
    if value is True:
        yield f"--{name}"
    elif value is False:
        yield f"--no-{name}"
    elif isinstance(value, list):
        yield f"--{name}"
        yield from value
    else:
        yield f"--{name}={value}"
