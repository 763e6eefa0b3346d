"""What decides whether pods of two pools can read each other's KV blocks, and the refusal where they cannot. Pure.

The KV fingerprint is a hash of it (render/engine.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from phasewise_operator.render.context import RenderError
from phasewise_runtime import contract
from phasewise_runtime.engine.arguments import KV_NEUTRAL_ARGS
from phasewise_runtime.engine.config import EngineConfig

KV_ENV: Final = ("VLLM_ATTENTION_BACKEND", "VLLM_KV_CACHE_LAYOUT")
KvInputs = Mapping[str, Any]


def kv_inputs(config: EngineConfig, container: Mapping[str, Any]) -> KvInputs:
    """What must be equal for one pod to read another's KV blocks, from the engine's container as it is rendered.

    Parallel sizes may differ: NIXL maps them."""
    env = {e["name"]: e.get("value") for e in container.get("env", [])}
    return {
        "image": container["image"],
        "model": config.model_uri,
        "connector": "NixlConnector" if config.disaggregated else None,
        "device": config.device,
        "args": {name: value for name, value in config.args.items() if _decides_kv(name)},
        "env": {name: env[name] for name in KV_ENV if name in env},
    }


def check_pair(inputs: Mapping[str, KvInputs]) -> None:
    """By role, of both pools. Raises RenderError where one could not read the other's KV blocks, which is known before
    a pod is made: image and environment differ by the pools' templates, the device by `accelerator`."""
    prefill, decode = inputs[contract.PREFILL], inputs[contract.DECODE]
    if prefill["image"] != decode["image"]:
        field = "template.spec.containers[engine].image"
        _refuse(field, prefill["image"], decode["image"], "spec.engine.image sets the image of both")
    for name in KV_ENV:
        ours, theirs = (_value(side["env"], name) for side in (prefill, decode))
        if ours != theirs:
            _refuse(f"template.spec.containers[engine].env[{name}]", ours, theirs, "set it in both pools, or in none")
    if prefill["device"] != decode["device"]:
        _refuse("accelerator", prefill["device"], decode["device"], "give both pools one, or none")


def _refuse(field: str, prefill: str, decode: str, advice: str) -> None:
    what = f"the engines run with {prefill} and with {decode}, and could not read each other's KV cache"
    raise RenderError(f"spec.prefill.{field} and spec.decode.{field} must be equal: {what}; {advice}")


def _value(env: Mapping[str, str | None], name: str) -> str:
    if name not in env:
        return f"no {name}"
    return f"{name} by valueFrom" if env[name] is None else f"{name}={env[name]}"


def _decides_kv(argument: str) -> bool:
    """`a.b` sets one key of the setting `a`; `no-a` is `a` set to false."""
    return argument.partition(".")[0].removeprefix("no-") not in KV_NEUTRAL_ARGS
