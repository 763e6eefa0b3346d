"""The models say the same as the API server: defaults, renamed fields, what is refused, names outside."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from phasewise_operator.api import (
    Condition,
    ConditionStatus,
    InferenceServiceSpec,
    InferenceServiceStatus,
    PoolScalerSpec,
    ScalingMode,
)

MINIMAL: dict[str, Any] = {
    "model": {"uri": "hf://Qwen/Qwen3-8B"},
    "slo": {"ttft": "500ms", "itl": "40ms"},
    "decode": {},
}


def test_minimal_spec_has_the_documented_defaults() -> None:
    spec = InferenceServiceSpec.model_validate(MINIMAL)
    assert spec.prefill is None
    assert spec.engine.args == {}
    assert (spec.decode.replicas.min, spec.decode.replicas.max) == (1, None)
    assert spec.decode.accelerator is None
    assert spec.decode.parallelism.accelerators == 1
    assert spec.router.replicas == 2
    assert spec.scaling.mode is ScalingMode.AUTO
    assert spec.scaling.scale_down_stabilization.seconds == 300
    assert (spec.slo.attainment, spec.max_generation_seconds, spec.hold_seconds, spec.paused) == (95, 600, 30, False)


def test_set_fields_are_those_that_say_something_else_than_their_default() -> None:
    decode = {"replicas": {"min": 0}, "parallelism": {"tensor": 1}, "accelerator": {}, "resources": {"limits": {}}}
    spec = InferenceServiceSpec.model_validate(
        MINIMAL | {"decode": decode, "engine": {"args": {"enforce-eager": False}}}
    )
    assert spec.set_fields() == MINIMAL | {
        "engine": {"args": {"enforce-eager": False}},
        "decode": {"replicas": {"min": 0}},
    }
    assert spec.decode.set_fields("parallelism", "template") == {}
    named = InferenceServiceSpec.model_validate(MINIMAL | {"imagePullSecrets": [{"name": "registry"}]})
    assert named.set_fields("image_pull_secrets") == {"image_pull_secrets": [{"name": "registry"}]}


def test_accelerator_without_a_resource_is_a_gpu() -> None:
    spec = InferenceServiceSpec.model_validate(MINIMAL | {"decode": {"accelerator": {}}})
    assert spec.decode.accelerator is not None
    assert spec.decode.accelerator.resource == "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("written", "generation", "hold"),
    [
        ({"maxGeneration": "1h2m", "hold": "1.5s"}, 3720, 1.5),
        ({"maxGeneration": "10500ms", "hold": "0"}, 11, 0),
        ({"maxGenerationSeconds": 900, "holdSeconds": 0}, 900, 0),
        ({"maxGenerationSeconds": 900, "maxGeneration": "20m", "holdSeconds": 45, "hold": "0s"}, 1200, 0),
    ],
    ids=["durations", "rounded up", "stored before the rename", "both"],
)
def test_a_duration_is_taken_before_the_seconds_of_a_stored_object(
    written: dict[str, Any], generation: int, hold: float
) -> None:
    spec = InferenceServiceSpec.model_validate(MINIMAL | written)
    assert (spec.max_generation_seconds, spec.hold_seconds) == (generation, hold)


@pytest.mark.parametrize(
    "value",
    [2048, 0.9, True, "float16", ["a", "b"], [1, 0.5, "c"], {"a": {"b": [1, None]}}],
    ids=["integer", "number", "flag", "text", "list", "numbers", "nested"],
)
def test_engine_arguments_keep_their_type(value: object) -> None:
    spec = InferenceServiceSpec.model_validate(MINIMAL | {"engine": {"args": {"name": value}}})
    assert spec.engine.args["name"] == value
    assert type(spec.engine.args["name"]) is type(value)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"decode": {"replicas": {"min": -1}}}, "decode.replicas.min"),
        ({"engine": {"type": "sglang"}}, "engine.type"),
        ({"engine": {"image": " "}}, "engine.image"),
        ({"engine": {"args": {"name": [[1]]}}}, "engine.args.name"),
        ({"model": {"uri": "Qwen/Qwen3-8B"}}, "model.uri"),
        ({"slo": {"ttft": "fast", "itl": "40ms"}}, "slo.ttft"),
        ({"maxGeneration": "9s"}, "maxGeneration"),
        ({"maxGenerationSeconds": 9}, "maxGenerationSeconds"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as refused:
        InferenceServiceSpec.model_validate(MINIMAL | change)
    places = [".".join(str(part) for part in error["loc"]) for error in refused.value.errors()]
    assert any(place.startswith(where) for place in places)


def test_fields_of_a_newer_version_are_passed_over_at_every_level() -> None:
    newer = {**MINIMAL, "fresh": 1, "router": {"replicas": 1, "fresh": {"a": []}}, "slo": {**MINIMAL["slo"], "x": 1}}
    spec = InferenceServiceSpec.model_validate(newer)
    assert spec.set_fields() == InferenceServiceSpec.model_validate({**MINIMAL, "router": {"replicas": 1}}).set_fields()


CONDITION = {"type": "A", "status": "True", "reason": "B", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}
DECISION = {"time": "2026-01-02T03:04:05Z", "role": "decode", "from": 1, "to": 2, "reason": "C", "message": "d"}


@pytest.mark.parametrize(
    ("stored", "readable"),
    [
        (None, {}),
        ([1], {}),
        ({"fresh": 1, "url": "u"}, {"url": "u"}),
        ({"conditions": [{"type": "Ready"}, {**CONDITION, "fresh": 1}, 3]}, {"conditions": [CONDITION]}),
        ({"scaling": {"decisions": [{**DECISION, "fresh": 1}, {"to": -1}]}}, {"scaling": {"decisions": [DECISION]}}),
        ({"decode": {"desired": "many"}, "observedGeneration": 2}, {"observedGeneration": 2}),
        ({"slo": {"ttft": {"target": "500ms", "measured": "slow", "summary": ""}}, "prefill": None}, {}),
        ({"observed_generation": "x", "url": "u"}, {"url": "u"}),
        *(
            ({"scaling": {"decisions": [DECISION, {**DECISION, "time": at}]}}, {"scaling": {"decisions": [DECISION]}})
            for at in ("2026-02-31T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00+99:00")
        ),
    ],
    ids=[
        "null",
        "a list",
        "unknown",
        "conditions",
        "decisions",
        "a bad value",
        "a lacking value",
        "another spelling",
        "no such day",
        "a time without a zone",
        "no such zone",
    ],
)
def test_of_a_stored_status_what_can_be_read_is_read(stored: object, readable: dict[str, Any]) -> None:
    assert InferenceServiceStatus.readable(stored) == readable


@pytest.mark.parametrize("time", ["x", "", "2026-13-01T00:00:00Z", "2026-01-02", "2026-01-02T03:04:05"])
def test_of_a_stored_status_a_time_that_is_none_is_left_out(time: str) -> None:
    """The age of a measurement is computed from it, in each pass."""
    measure = {"target": "500ms", "measured": "400ms", "summary": "400ms/500ms"}
    stored = {
        "slo": {"ttft": {**measure, "lastSampleTime": time}, "itl": measure},
        "conditions": [{**CONDITION, "lastTransitionTime": time}],
        "scaling": {"decisions": [{**DECISION, "time": time}]},
    }
    assert InferenceServiceStatus.readable(stored)["slo"] == {"ttft": measure, "itl": measure}


def test_models_cannot_be_changed() -> None:
    spec = InferenceServiceSpec.model_validate(MINIMAL)
    with pytest.raises(ValidationError):
        spec.paused = True  # pyright: ignore[reportAttributeAccessIssue]


def test_status_is_written_in_camel_case_without_empty_values() -> None:
    ready = Condition(
        type="Ready",
        status=ConditionStatus.FALSE,
        reason="Starting",
        message="0 of 1 decode replicas are ready",
        last_transition_time="2026-01-02T03:04:05Z",
    )
    status = InferenceServiceStatus(observed_generation=3, conditions=[ready], url="http://llama.default.svc/v1")
    assert status.to_json() == {
        "observedGeneration": 3,
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "Starting",
                "message": "0 of 1 decode replicas are ready",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            }
        ],
        "url": "http://llama.default.svc/v1",
    }


def test_pool_scaler_names_its_pool() -> None:
    scaler = PoolScalerSpec.model_validate({"replicas": 2, "serviceRef": {"name": "llama"}, "role": "decode"})
    assert (scaler.replicas, scaler.service_ref.name, scaler.role) == (2, "llama", "decode")
