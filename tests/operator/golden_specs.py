"""The four specs whose children are kept as golden files and whose revisions are kept as constants."""

from __future__ import annotations

from typing import Any

GPU: dict[str, Any] = {"accelerator": {"nodeSelector": {"gpu": "h100"}}}
SHAPES: dict[str, dict[str, Any]] = {
    "gpu-tp1": {"prefill": GPU, "decode": GPU},
    "gpu-tp4": {
        "prefill": {**GPU, "parallelism": {"tensor": 4}, "resources": {"requests": {"cpu": 8, "memory": "64Gi"}}},
        "decode": {**GPU, "parallelism": {"tensor": 4}},
        "model": {"uri": "hf://org/llama-70b@v1", "secretRef": {"name": "hf-token"}},
    },
    "gpu-aggregated": {"prefill": None, "decode": GPU, "model": {"uri": "pvc://weights/llama"}},
    "cpu": {"model": {"uri": "file:///opt/models/tiny"}},
}
