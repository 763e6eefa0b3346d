"""Configurations whose commands are checked: by tables here, and by vLLM's own parser (parse_arguments.py)."""

import json
from dataclasses import replace

from phasewise_runtime.engine.command import EngineCommand, PodEnvironment, engine_command
from phasewise_runtime.engine.config import EngineConfig
from phasewise_runtime.model_uri import model_location

POD = PodEnvironment(ip="10.0.0.7", cpus=2, plugin_path="/phasewise/launcher.pyz")

_CPU = EngineConfig(
    service="tiny",
    role="prefill",
    model_uri="file:///opt/models/tiny",
    model_name="tiny",
    device="cpu",
    args={"max-model-len": 2048, "dtype": "float32", "kv-cache-memory-bytes": 67108864},
)
_GPU = EngineConfig(
    service="llama",
    role="prefill",
    model_uri="hf://meta-llama/Llama-3.1-8B-Instruct@main",
    model_name="llama-3.1-8b",
    args={
        "max-model-len": 16384,
        "gpu-memory-utilization": 0.9,
        "enable-prefix-caching": False,
        "enable-prompt-tokens-details": True,
        "lora-modules": ["a=/models/a", "b=/models/b"],
    },
)

GOLDEN: dict[str, EngineConfig] = {
    "cpu prefill": _CPU,
    "cpu decode": replace(_CPU, role="decode"),
    "cpu both in one": replace(_CPU, role="decode", disaggregated=False, itl_target_ms=50),
    "cpu tensor 2": replace(_CPU, tensor=2),
    "gpu prefill": _GPU,
    "gpu decode": replace(_GPU, role="decode"),
    "gpu prefill tensor 4": replace(_GPU, tensor=4),
    "gpu decode tensor 4": replace(_GPU, role="decode", tensor=4),
    "gpu prefill pipeline 2": replace(_GPU, tensor=4, pipeline=2),
    "gpu both in one": replace(_GPU, role="decode", disaggregated=False, itl_target_ms=40),
    "gpu both in one, claim": replace(_GPU, role="decode", disaggregated=False, model_uri="pvc://weights/llama"),
}


def command(config: EngineConfig) -> EngineCommand:
    return engine_command(config, model_location(config.model_uri), POD)


if __name__ == "__main__":
    print(json.dumps([command(config).argv for config in GOLDEN.values()]))
