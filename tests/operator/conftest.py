"""What operator tests share: a service as the API server would hand it over, and its context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_operator.render.context import Context, Images

Spec = dict[str, Any]
MakeContext = Callable[..., Context]
IMAGES = Images("phasewise/runtime:1", "vllm/vllm-openai:v0.32.0", "IfNotPresent")


def minimal_spec(**changes: Any) -> Spec:
    spec: Spec = {
        "model": {"uri": "hf://org/llama", "name": "llama"},
        "slo": {"ttft": "500ms", "itl": "40ms"},
        "prefill": {},
        "decode": {},
    }
    spec.update(changes)
    return {key: value for key, value in spec.items() if value is not None}


@pytest.fixture
def make_context() -> MakeContext:
    def make(name: str = "chat", **changes: Any) -> Context:
        spec = InferenceServiceSpec.model_validate(minimal_spec(**changes))
        return Context("default", name, f"uid-{name}", spec, IMAGES)

    return make
