"""Gathers facts before vLLM starts and prints the problems that `checks` finds; a short-lived child of the launcher.

A child, because torch would keep GPU memory and 500 MB of its own in the launcher. The last line of its output is a
JSON list of problems. On CPU torch is not imported: that alone would take 20 s.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from phasewise_runtime import contract
from phasewise_runtime.engine.checks import Facts, ModelFiles, problems
from phasewise_runtime.engine.config import EngineConfig
from phasewise_runtime.model_uri import ModelLocation, model_location

_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model")
_INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def gather(config: EngineConfig, scratch: Path) -> Facts:
    location = model_location(config.model_uri)
    return Facts(
        has_vllm=_has("vllm"),
        has_nixl=_has("nixl"),
        model=_model_files(location) if location.local else None,
        gpu_memory=_gpu_memory() if config.device == "gpu" else None,
        scratch_free=_free(scratch),
        shared_memory_free=_free(Path("/dev/shm")),  # noqa: S108 - its size is asked, nothing is written
    )


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _free(path: Path) -> int | None:
    return shutil.disk_usage(path).free if path.is_dir() else None


def _model_files(location: ModelLocation) -> ModelFiles:
    folder = Path(location.reference)
    if not folder.is_dir():
        return ModelFiles(location.reference, exists=False)
    weights = [file for pattern in _WEIGHTS for file in folder.glob(pattern)]
    return ModelFiles(
        location.reference,
        exists=True,
        settings=_read_json(folder / "config.json"),
        has_tokenizer=any((folder / name).is_file() for name in _TOKENIZERS),
        weight_bytes=sum(file.stat().st_size for file in weights),
        missing_shards=tuple(sorted(_shards(folder) - {file.name for file in weights})),
    )


def _shards(folder: Path) -> set[str]:
    for index in _INDEXES:
        content = _read_json(folder / index)
        if content is not None and isinstance(content.get("weight_map"), dict):
            return set(cast("dict[str, str]", content["weight_map"]).values())
    return set()


def _read_json(path: Path) -> Mapping[str, Any] | None:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("Mapping[str, Any]", content) if isinstance(content, dict) else None


def _gpu_memory() -> tuple[int, ...]:
    try:
        cuda: Any = importlib.import_module("torch").cuda
    except ImportError:
        return ()
    return tuple(int(cuda.get_device_properties(i).total_memory) for i in range(cuda.device_count()))


def main() -> None:
    config = EngineConfig.from_json(os.environ[contract.ENV_ENGINE_CONFIG])
    print(json.dumps(problems(config, gather(config, Path(sys.argv[1])))), flush=True)


if __name__ == "__main__":
    main()
