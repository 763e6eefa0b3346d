"""Finds problems before vLLM starts, from the facts that `preflight` gathered. Pure.

Each problem is one line that says what to change in the InferenceService.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from phasewise_runtime import contract
from phasewise_runtime.engine.config import EngineConfig

GIB: Final = 1 << 30
_SHARED_MEMORY_NEEDED: Final = GIB
_SCRATCH_NEEDED: Final = GIB // 4
_DEFAULT_GPU_UTILIZATION: Final = 0.92


@dataclass(frozen=True)
class ModelFiles:
    """The files of a local model's folder; `settings` is its config.json."""

    path: str
    exists: bool
    settings: Mapping[str, Any] | None = None
    has_tokenizer: bool = False
    weight_bytes: int = 0
    missing_shards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    has_vllm: bool = True
    has_nixl: bool = True
    model: ModelFiles | None = None
    """None where the engine fetches it."""
    gpu_memory: tuple[int, ...] | None = None
    """Bytes of each GPU that torch sees; None on CPU."""
    scratch_free: int | None = None
    shared_memory_free: int | None = None


def problems(config: EngineConfig, facts: Facts) -> list[str]:
    found = [*_parallelism(config), *_packages(config, facts), *_space(config, facts)]
    if facts.model is not None:
        found += _model(config, facts.model)
    if config.gpus and facts.gpu_memory is not None:
        found += _gpus(config, facts.gpu_memory, facts.model.weight_bytes if facts.model else 0)
    return found


def _parallelism(config: EngineConfig) -> Iterator[str]:
    if not config.disaggregated:
        return
    if config.role == contract.DECODE and config.pipeline > 1:
        yield (
            f"spec.decode.parallelism.pipeline is {config.pipeline}: KV transfer needs 1 there; "
            "raise spec.decode.parallelism.tensor instead"
        )
    if config.peer_tensor is not None and max(config.tensor, config.peer_tensor) % min(
        config.tensor, config.peer_tensor
    ):
        yield (
            f"parallelism.tensor is {config.tensor} in spec.{config.role} and {config.peer_tensor} in the other pool: "
            "KV transfer needs one to be a multiple of the other"
        )


def _packages(config: EngineConfig, facts: Facts) -> Iterator[str]:
    if not facts.has_vllm:
        yield "spec.engine.image has no vLLM for its python3: name an image that runs `python3 -m vllm`"
    elif config.disaggregated and not facts.has_nixl:
        yield "spec.engine.image has no NIXL (python package nixl): name an image with it, or leave out spec.prefill"


def _space(config: EngineConfig, facts: Facts) -> Iterator[str]:
    if facts.scratch_free is not None and facts.scratch_free < _SCRATCH_NEEDED:
        yield (
            f"{contract.SCRATCH_DIR} has {_gib(facts.scratch_free)} free and {_gib(_SCRATCH_NEEDED)} is needed: "
            f"raise resources.requests.ephemeral-storage of spec.{config.role}"
        )
    is_many = config.tensor * config.pipeline > 1
    if is_many and facts.shared_memory_free is not None and facts.shared_memory_free < _SHARED_MEMORY_NEEDED:
        yield (
            f"/dev/shm has {_gib(facts.shared_memory_free)} free and {_gib(_SHARED_MEMORY_NEEDED)} is needed for "  # noqa: S108
            f"{config.tensor * config.pipeline} workers: raise resources.limits.memory of spec.{config.role}"
        )


def _model(config: EngineConfig, model: ModelFiles) -> Iterator[str]:
    uri = f"spec.model.uri {config.model_uri}"
    if not model.exists:
        yield f"{uri}: there is no folder {model.path} in the pod; correct the path, or mount what holds the model"
        return
    if model.settings is None:
        yield f"{uri}: {model.path} has no readable config.json; name the folder of a Hugging Face model"
    if model.weight_bytes == 0 and config.args.get("load-format") != "dummy":
        yield f"{uri}: {model.path} has no weights (*.safetensors, *.bin, *.pt, *.gguf); copy them there"
    if model.missing_shards:
        yield f"{uri}: weight files named by the index are missing: {', '.join(model.missing_shards[:3])}; copy them"
    if not model.has_tokenizer and not {"tokenizer", "skip-tokenizer-init"} & config.args.keys():
        yield f"{uri}: {model.path} has no tokenizer; copy its files there or set tokenizer in spec.engine.args"
    if model.settings is not None:
        yield from _heads(config, model.settings)


def _heads(config: EngineConfig, settings: Mapping[str, Any]) -> Iterator[str]:
    nested = settings.get("text_config")
    text = cast("Mapping[str, Any]", nested) if isinstance(nested, Mapping) else settings
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    where = f"spec.{config.role}.parallelism.tensor is {config.tensor}"
    if isinstance(heads, int) and heads % config.tensor:
        yield f"{where}: the model has {heads} attention heads, so use a divisor of {heads}"
    is_latent = text.get("kv_lora_rank") is not None
    is_larger_prefill = config.role == contract.PREFILL and config.tensor > (config.peer_tensor or config.tensor)
    if is_larger_prefill and not is_latent and isinstance(kv_heads, int) and config.tensor > kv_heads:
        yield (
            f"{where}, more than the model's {kv_heads} KV heads and more than spec.decode's {config.peer_tensor}: "
            f"KV transfer needs at most {kv_heads} there"
        )


def _gpus(config: EngineConfig, memory: tuple[int, ...], weight_bytes: int) -> Iterator[str]:
    if len(memory) < config.gpus:
        yield (
            f"the container sees {len(memory)} GPU(s) and {config.gpus} are needed: check spec.{config.role}."
            "accelerator, and that the node's driver fits spec.engine.image"
        )
        return
    share = config.args.get("gpu-memory-utilization", _DEFAULT_GPU_UTILIZATION)
    usable = min(memory[: config.gpus]) * (share if isinstance(share, float) else _DEFAULT_GPU_UTILIZATION)
    needed = weight_bytes / config.gpus
    if needed > usable:
        yield (
            f"the weights take {_gib(needed)} a GPU and {_gib(usable)} is usable: raise "
            f"spec.{config.role}.parallelism.tensor or name larger GPUs in its accelerator.nodeSelector"
        )


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
