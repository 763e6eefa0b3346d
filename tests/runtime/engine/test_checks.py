"""What preflight says of each thing that cannot work, and that it is silent about what can."""

from dataclasses import replace

import pytest
from tests.runtime.engine.golden import GOLDEN

from phasewise_runtime.engine.checks import GIB, Facts, ModelFiles, problems
from phasewise_runtime.engine.config import EngineConfig

CPU = GOLDEN["cpu prefill"]
PREFILL = replace(GOLDEN["gpu prefill"], args={})
DECODE = replace(PREFILL, role="decode")
ALONE = replace(DECODE, disaggregated=False)
LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8}
MODEL = ModelFiles("/models/m", exists=True, settings=LLAMA, has_tokenizer=True, weight_bytes=16 * GIB)
GOOD = Facts(model=MODEL, gpu_memory=(80 * GIB,) * 8, scratch_free=50 * GIB, shared_memory_free=8 * GIB)


def with_model(**changes: object) -> Facts:
    return replace(GOOD, model=replace(MODEL, **changes))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "config",
    [
        CPU,
        PREFILL,
        replace(PREFILL, tensor=4, peer_tensor=2, pipeline=2),
        replace(DECODE, tensor=8, peer_tensor=1),
        replace(ALONE, tensor=2, pipeline=2),
    ],
)
def test_a_working_configuration_has_no_problems(config: EngineConfig) -> None:
    assert problems(config, GOOD) == []


CASES: dict[str, tuple[EngineConfig, Facts, str]] = {
    "decode pipeline": (
        replace(DECODE, pipeline=2),
        GOOD,
        "decode.parallelism.pipeline is 2: KV transfer needs 1",
    ),
    "tensor sizes": (replace(DECODE, tensor=2, peer_tensor=3), GOOD, "one to be a multiple of the other"),
    "no vllm": (CPU, replace(GOOD, has_vllm=False), "spec.engine.image has no vLLM"),
    "no nixl": (CPU, replace(GOOD, has_nixl=False), "spec.engine.image has no NIXL"),
    "scratch full": (CPU, replace(GOOD, scratch_free=GIB // 8), "raise resources.requests.ephemeral-storage"),
    "small shm": (replace(PREFILL, tensor=2), replace(GOOD, shared_memory_free=GIB // 16), "raise resources.limits.me"),
    "no folder": (PREFILL, with_model(exists=False), "there is no folder /models/m in the pod"),
    "no config.json": (PREFILL, with_model(settings=None), "no readable config.json"),
    "no weights": (PREFILL, with_model(weight_bytes=0), "has no weights"),
    "missing shard": (PREFILL, with_model(missing_shards=("model-2.safetensors",)), "are missing: model-2.safetensors"),
    "no tokenizer": (PREFILL, with_model(has_tokenizer=False), "has no tokenizer"),
    "heads": (replace(PREFILL, tensor=3), GOOD, "the model has 32 attention heads, so use a divisor of 32"),
    "nested heads": (replace(PREFILL, tensor=3), with_model(settings={"text_config": LLAMA}), "32 attention heads"),
    "kv heads": (replace(PREFILL, tensor=16, peer_tensor=4), replace(GOOD, gpu_memory=(80 * GIB,) * 16), "at most 8"),
    "few gpus": (replace(PREFILL, tensor=4), replace(GOOD, gpu_memory=(80 * GIB,)), "sees 1 GPU(s) and 4 are needed"),
    "no gpus": (PREFILL, replace(GOOD, gpu_memory=()), "sees 0 GPU(s)"),
    "small gpu": (PREFILL, replace(GOOD, gpu_memory=(16 * GIB,)), "raise spec.prefill.parallelism.tensor"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_problem_is_one_line_that_says_what_to_change(name: str) -> None:
    config, facts, said = CASES[name]
    (problem,) = problems(config, facts)
    assert said in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (replace(ALONE, pipeline=2, tensor=1), GOOD),
        (ALONE, replace(GOOD, has_nixl=False)),
        (replace(PREFILL, args={"load-format": "dummy"}), with_model(weight_bytes=0)),
        (replace(PREFILL, args={"tokenizer": "org/name"}), with_model(has_tokenizer=False)),
        (
            replace(PREFILL, tensor=16, peer_tensor=4),
            replace(with_model(settings={**LLAMA, "kv_lora_rank": 512}), gpu_memory=(80 * GIB,) * 16),
        ),
        (PREFILL, replace(GOOD, model=None)),
    ],
    ids=["pipeline alone", "alone without nixl", "dummy weights", "tokenizer elsewhere", "latent KV", "fetched model"],
)
def test_an_exception_to_a_rule_is_no_problem(config: EngineConfig, facts: Facts) -> None:
    assert problems(config, facts) == []
