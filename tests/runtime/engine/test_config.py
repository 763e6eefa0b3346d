"""EngineConfig survives its way through JSON, and bad input is refused with what is wrong."""

import json
from typing import Any

import pytest
from tests.runtime.engine.golden import GOLDEN

from phasewise_runtime.engine.config import ConfigError, EngineConfig

LEAST: dict[str, Any] = {"service": "s", "role": "decode", "model_uri": "hf://a/b", "model_name": "m"}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_configuration_survives_json(name: str) -> None:
    assert EngineConfig.from_json(GOLDEN[name].to_json()) == GOLDEN[name]


def test_equal_configurations_give_equal_text() -> None:
    one = EngineConfig(**LEAST, args={"a": 1, "b": 2})
    other = EngineConfig(**LEAST, args={"b": 2, "a": 1})
    assert one.to_json() == other.to_json()


def test_four_fields_are_required() -> None:
    config = EngineConfig.from_json(json.dumps(LEAST))
    assert (config.disaggregated, config.device, config.gpus, config.engine_port) == (True, "gpu", 1, 8000)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "device", "gpus"), [(1, 1, "gpu", 1), (4, 2, "gpu", 8), (2, 1, "cpu", 0)]
)
def test_gpus_follow_from_parallelism(tensor: int, pipeline: int, device: Any, gpus: int) -> None:
    assert EngineConfig(**LEAST, tensor=tensor, pipeline=pipeline, device=device).gpus == gpus


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[]", "must be a JSON object, not list"),
        ("{}", "missing fields model_name, model_uri, role, service"),
        (json.dumps({**LEAST, "modle": 1}), "unknown fields modle: operator and launcher must be of one version"),
    ],
)
def test_text_that_is_no_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_json(text)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("service", "", "a non-empty text"),
        ("role", "router", "prefill or decode"),
        ("device", "tpu", "cpu or gpu"),
        ("disaggregated", "yes", "true or false"),
        ("tensor", 0, "at least 1"),
        ("tensor", True, "at least 1"),
        ("pipeline", 1.5, "at least 1"),
        ("peer_tensor", 0, "or null"),
        ("args", ["max-model-len"], "a mapping"),
        ("args", {"a": None}, "a mapping"),
        ("args", {"a": [1]}, "a mapping"),
        ("args", {"": 1}, "a mapping"),
        ("max_generation_seconds", 0, "above 0"),
        ("itl_target_ms", 0, "or null"),
        ("kv_lease_seconds", 5, "at least 6"),
        ("settle_seconds", -1, "0 or more"),
        ("startup_seconds", "60", "a number of seconds"),
        ("secrets_dir", "relative", "an absolute folder"),
        ("engine_port", 70000, "a port number"),
    ],
)
def test_a_bad_field_is_named_with_what_it_must_be(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_json(json.dumps({**LEAST, field: value}))
    assert str(error.value).startswith(f"{field} must be ")
    assert message in str(error.value)


def test_a_prefill_pod_without_disaggregation_is_refused() -> None:
    with pytest.raises(ConfigError, match="role prefill needs disaggregated"):
        EngineConfig.from_json(json.dumps({**LEAST, "role": "prefill", "disaggregated": False}))
