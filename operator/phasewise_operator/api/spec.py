"""``spec`` of an InferenceService: what the user asks for.

The field descriptions are what ``kubectl explain`` shows.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, JsonValue, StrictFloat, StrictInt, StrictStr, WithJsonSchema

from phasewise_operator.api import rules
from phasewise_operator.api.base import ApiModel, LocalRef, PodTemplate, with_rules
from phasewise_operator.api.durations import Duration, HoldDuration, MaxGenerationDuration, PositiveDuration
from phasewise_operator.api.pool import Pool, Resources
from phasewise_runtime.engine.arguments import OWNED

DEFAULT_MAX_GENERATION = MaxGenerationDuration("10m")
DEFAULT_HOLD = HoldDuration("30s")
DEFAULT_ROLLOUT_DEADLINE = PositiveDuration("70m")
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"


class EngineType(StrEnum):
    """Inference engines that Phasewise can run."""

    VLLM = "vllm"


class EngineDevice(StrEnum):
    """What an engine computes on."""

    CPU = "cpu"
    GPU = "gpu"


class ImagePullPolicy(StrEnum):
    """When a node pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ScalingMode(StrEnum):
    """Who decides the number of replicas."""

    AUTO = "Auto"
    EXTERNAL = "External"
    MANUAL = "Manual"


class Model(ApiModel):
    """The model that is served."""

    model_config = with_rules(
        rules.MODEL_URI, rules.MODEL_SCHEME_SUPPORTED, rules.MODEL_HF, rules.MODEL_PVC, rules.MODEL_FILE
    )

    uri: str = Field(
        max_length=512,
        pattern=rules.MODEL_URI_PATTERN,
        description="Where the weights are: hf://owner/name[@revision], pvc://claim/path or file:///path in the "
        "engine image.",
    )
    name: str | None = Field(
        default=None,
        max_length=253,
        pattern=MODEL_NAME,
        description="Model name that clients send. Left out: metadata.name.",
    )
    secret_ref: LocalRef | None = Field(
        default=None, description="Secret with the credentials for the weights, such as key HF_TOKEN for hf://."
    )


ArgValue = bool | int | float | str | list[StrictStr | StrictInt | StrictFloat] | dict[str, JsonValue]


_OWNED_FLAGS = frozenset({"disable-log-stats", "grpc", "headless"})


def _owned_arg(name: str) -> dict[str, Any]:
    kind = {"type": "boolean"} if name in _OWNED_FLAGS else {"x-kubernetes-int-or-string": True}
    return kind | {"description": f"Refused: {OWNED[name]}."}


EngineArgs = Annotated[
    dict[str, ArgValue],
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": 64,
            # Unknown fields are invisible to CEL: what is to be refused must be declared.
            "properties": {name: _owned_arg(name) for name in OWNED},
            "x-kubernetes-preserve-unknown-fields": True,
            "x-kubernetes-validations": [rule.to_schema() for rule in rules.ENGINE_ARGS],
        }
    ),
]
"""Arguments of the engine by name without dashes. Spellings that CEL cannot see (a_b, a.b) the launcher refuses."""


class Engine(ApiModel):
    """The inference engine that runs in every replica."""

    type: EngineType = Field(default=EngineType.VLLM, description="Inference engine.")
    image: str | None = Field(
        default=None,
        max_length=512,
        pattern=r"^\S+$",
        description="Engine image. Left out: the operator's default when the service was made.",
    )
    device: EngineDevice | None = Field(
        default=None,
        description="What the engine computes on. Left out: gpu where the pools have an accelerator, else cpu. Write "
        "cpu where accelerator.resource counts places for engines that compute on CPU.",
    )
    image_pull_policy: ImagePullPolicy | None = Field(
        default=None, description="Pull policy of the engine image. Left out: the operator's default."
    )
    args: EngineArgs = Field(
        default_factory=dict[str, ArgValue],
        description="Arguments of the engine, by name without dashes, such as max-model-len: 16384. A value is text, "
        "a number, true (a bare flag), false (--no-...), a list of texts or numbers, or nested settings, which are "
        "passed on as JSON.",
    )


class Slo(ApiModel):
    """Latency targets that the pools are sized for."""

    ttft: PositiveDuration = Field(description="Target for the time to first token of a request, such as 500ms.")
    itl: PositiveDuration = Field(
        description="Target for the inter-token latency of a request: the mean gap between its output tokens after "
        "the first, such as 40ms."
    )
    attainment: int = Field(
        default=95, ge=50, le=100, description="Percentage of requests that must meet both targets."
    )


class ApiKeys(ApiModel):
    """API keys that the router accepts."""

    secret_ref: LocalRef = Field(description="Secret whose values are the accepted API keys.")


class Router(ApiModel):
    """The router: the OpenAI API in front of the pools."""

    replicas: int = Field(default=2, ge=1, le=1000, description="Number of router replicas.")
    api_keys: ApiKeys | None = Field(
        default=None, description="API keys that clients must send. Left out: no key is needed."
    )
    resources: Resources | None = Field(default=None, description="Resources of the router container.")
    template: PodTemplate | None = Field(
        default=None,
        description="Partial pod template, merged into the one that Phasewise renders. Its container is named router.",
    )


class Scaling(ApiModel):
    """How the pools are scaled."""

    mode: ScalingMode = Field(
        default=ScalingMode.AUTO,
        description="Auto: Phasewise sizes the pools. External: an autoscaler scales the PoolScaler of each pool. "
        "Manual: each pool has replicas.min.",
    )
    gpu_budget: int | None = Field(
        default=None,
        ge=1,
        le=1000000,
        description="Most accelerators that both pools may use together. Left out: no bound.",
    )
    scale_down_stabilization: Duration = Field(
        default=Duration("300s"),
        description="How long fewer replicas must have been sufficient before a pool is scaled down.",
    )


class OnFailure(StrEnum):
    """What becomes of a rollout whose new revision is bad."""

    STOP = "Stop"
    ROLL_BACK = "RollBack"


class Rollout(ApiModel):
    """How a new revision of the engines takes over from the old."""

    allow_downtime: bool = Field(
        default=False,
        description="Whether the last pods that serve may go where scaling.gpuBudget has no room for new ones beside "
        "them. While false such a rollout waits (reason RolloutBlocked), and the old revision goes on serving.",
    )
    on_failure: OnFailure = Field(
        default=OnFailure.STOP,
        description="What becomes of a new revision that fails: its pods do not get ready in time, its KV transfer "
        "fails, or it meets the latency targets much less often than the old. Stop: it gets no more replicas, and the "
        "old revision goes on serving. RollBack: the old revision takes over again, and the new one goes.",
    )
    deadline: PositiveDuration = Field(
        default=DEFAULT_ROLLOUT_DEADLINE,
        description="How long after their creation the first pods of a new revision may take to get ready, image pull "
        "and loading of the model included. Left out: 70m, as long as an engine may take to start.",
    )


class InferenceServiceSpec(ApiModel):
    """What is served, how fast, and on what."""

    model_config = with_rules(
        rules.SAME_DEVICE,
        rules.GPU_ENGINE_NEEDS_ACCELERATOR,
        rules.TENSOR_DIVIDES,
        *rules.NO_PIPELINE_WITH_PREFILL,
        rules.ZERO_TOGETHER,
        *rules.ZERO_NEEDS_MAXIMUM,
        rules.BUDGET_COVERS_MINIMA,
        rules.BUDGET_COVERS_A_REPLICA,
    )

    model: Model = Field(description="The model that is served.")
    engine: Engine = Field(default=Engine(), description="The inference engine that runs in every replica.")
    slo: Slo = Field(description="Latency targets that the pools are sized for.")
    prefill: Pool | None = Field(
        default=None,
        description="Pool that computes the KV cache of prompts and hands it to the decode pool. Left out (aggregated "
        "mode): there is no KV transfer, and decode replicas do both phases.",
    )
    decode: Pool = Field(
        description="Pool that generates tokens. Without prefill (aggregated mode) these replicas do both phases: they "
        "also compute the prompts, in chunks (chunked prefill) sized to slo.itl."
    )
    router: Router = Field(default=Router(), description="The router: the OpenAI API in front of the pools.")
    scaling: Scaling = Field(default=Scaling(), description="How the pools are scaled.")
    rollout: Rollout = Field(default=Rollout(), description="How a new revision of the engines takes over.")
    paused: bool = Field(default=False, description="While true the operator changes nothing of this service.")
    image_pull_secrets: Annotated[list[LocalRef], Field(max_length=16)] = Field(
        default_factory=list[LocalRef],
        description="Secrets for pulling the images of this service.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    max_generation: MaxGenerationDuration | None = Field(
        default=None,
        description="Longest time that a generation may take, from 10s to 24h: a pod that is stopped waits this long "
        "for those that it runs. Pods that run keep theirs until they are replaced. Left out: 10m.",
    )
    hold: HoldDuration | None = Field(
        default=None,
        description="How long the router holds a request while no replica can take it, from 0s to 1h. Left out: 30s.",
    )
    stored_max_generation_seconds: int | None = Field(
        default=None,
        alias="maxGenerationSeconds",
        ge=10,
        le=86400,
        description="Deprecated: write maxGeneration, such as 600s.",
        json_schema_extra=rules.validations(rules.MAX_GENERATION_SECONDS),
    )
    stored_hold_seconds: int | None = Field(
        default=None,
        alias="holdSeconds",
        ge=0,
        le=3600,
        description="Deprecated: write hold, such as 30s.",
        json_schema_extra=rules.validations(rules.HOLD_SECONDS),
    )

    @property
    def max_generation_seconds(self) -> int:
        """Longest generation in seconds, rounded up because Kubernetes counts grace periods in whole ones."""
        stored = self.stored_max_generation_seconds
        return math.ceil(_effective_seconds(self.max_generation, stored, DEFAULT_MAX_GENERATION))

    @property
    def hold_seconds(self) -> float:
        """How long the router holds a request, in seconds."""
        return _effective_seconds(self.hold, self.stored_hold_seconds, DEFAULT_HOLD)


def _effective_seconds(written: Duration | None, stored_seconds: int | None, default: Duration) -> float:
    """Seconds of a renamed field; before the rename the API server stored its default in every object."""
    if written is None and stored_seconds is not None:
        return stored_seconds
    return (written or default).seconds
