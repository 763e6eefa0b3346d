"""Have vLLM inspect a model's class now, so that VLLM_CACHE_ROOT holds the answer: inspect_model.py MODEL_FOLDER

An engine otherwise asks a subprocess at every start, which takes some 20 s.
"""

import json
import sys
from pathlib import Path

from vllm.config import ModelConfig
from vllm.model_executor.models import ModelRegistry


def main() -> None:
    folder = sys.argv[1]
    architectures = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["architectures"]
    ModelRegistry.inspect_model_cls(architectures, ModelConfig(model=folder))


if __name__ == "__main__":
    main()
