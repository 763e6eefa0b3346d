"""``status`` of an InferenceService: what the operator reports. No field that nothing writes."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field

from phasewise_operator.api.base import ApiModel
from phasewise_operator.api.durations import Duration

UNOBSERVED: Final = -1
"""observedGeneration of a new object: no generation equals it, so kstatus and Flux do not take it for reconciled."""


def _with_zone(text: str) -> str:
    """The API server takes more for a time: February 31, or one without a zone."""
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time needs a zone, such as Z")
    return text


Time = Annotated[str, AfterValidator(_with_zone), Field(json_schema_extra={"format": "date-time"})]
"""A point in time as the API server writes it (RFC 3339, UTC)."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One aspect of the state, as in every Kubernetes object."""

    type: str = Field(max_length=316, description="Aspect that the condition is about, such as Ready.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: str = Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Reason in one word.",
    )
    message: str = Field(max_length=32768, description="Explanation for people, and what to do.")
    last_transition_time: Time = Field(description="When status last changed.")
    observed_generation: int | None = Field(default=None, ge=0, description="metadata.generation that this describes.")


class ModelStatus(ApiModel):
    """The served model."""

    name: str = Field(description="Model name that clients send.")


class RoleStatus(ApiModel):
    """A pool of engine replicas."""

    desired: int = Field(ge=0, description="Replicas that the pool should have.")
    ready: int = Field(ge=0, description="Replicas that are ready.")
    pending: int = Field(ge=0, description="Replicas that cannot be scheduled or are starting.")
    revision: str = Field(description="Revision that the spec asks for.")
    observed_revision: str | None = Field(
        default=None,
        description="Revision that serves. During a rollout that is the old one, until all replicas of the new one are "
        "ready or the old one has gone. Absent until a replica of the first revision is ready.",
    )
    summary: str = Field(description="Ready and desired replicas, such as 1/2.")
    reason: str | None = Field(default=None, description="Reason for the pool's size, in one word.")


class RouterStatus(ApiModel):
    """The router's replicas."""

    replicas: int = Field(ge=0, description="Replicas that the router should have.")
    ready: int = Field(ge=0, description="Replicas that are ready.")


class SloMeasure(ApiModel):
    """One latency target and what was measured."""

    target: Duration = Field(description="Target in the spec.")
    measured: Duration | None = Field(
        default=None, description="Latency that slo.attainment percent of requests met. Absent until it was measured."
    )
    last_sample_time: Time | None = Field(default=None, description="When it was last measured.")
    summary: str = Field(
        description="Measured latency and target, such as 430ms/500ms; -/500ms where nothing was measured lately."
    )


class SloStatus(ApiModel):
    """Latency targets and what was measured."""

    ttft: SloMeasure = Field(description="Time to first token.")
    itl: SloMeasure = Field(description="Inter-token latency.")


class ScalingDecision(ApiModel):
    """A change of a pool's size."""

    time: Time = Field(description="When it was decided.")
    role: str = Field(description="The pool: prefill or decode.")
    before: int = Field(ge=0, serialization_alias="from", validation_alias="from", description="Replicas before.")
    to: int = Field(ge=0, description="Replicas after.")
    reason: str = Field(description="Reason in one word.")
    message: str = Field(max_length=1024, description="Explanation for people, with the figures behind the decision.")


class ScalingStatus(ApiModel):
    """How the pools were scaled."""

    decisions: Annotated[list[ScalingDecision], Field(max_length=5)] = Field(
        default_factory=list[ScalingDecision], description="The last changes of size, newest first."
    )


class RolloutState(StrEnum):
    """How a rollout goes."""

    PROGRESSING = "Progressing"
    STOPPED = "Stopped"
    ROLLED_BACK = "RolledBack"


class RolloutStatus(ApiModel):
    """A rollout that is under way or has failed."""

    state: RolloutState = Field(description="Progressing; Stopped or RolledBack where the new revision has failed.")
    revision: str = Field(description="Revision that is rolled out.")
    old_revision: str | None = Field(default=None, description="Revision that goes on in place of one that failed.")
    reason: str | None = Field(default=None, description="Why it failed, in one word.")
    since: Time = Field(description="When it began, or failed.")


class InferenceServiceStatus(ApiModel):
    """State of the service as the operator last observed it."""

    model_config = ConfigDict(json_schema_extra={"default": {"observedGeneration": UNOBSERVED}})

    observed_generation: int | None = Field(
        default=None,
        ge=UNOBSERVED,
        description="metadata.generation that this describes; -1 until the operator has seen the object.",
    )
    conditions: list[Condition] = Field(
        default_factory=list[Condition],
        description="State by aspect: Ready, its parts, Reconciling and Stalled.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    url: str | None = Field(default=None, description="Address of the OpenAI API inside the cluster.")
    model: ModelStatus | None = Field(default=None, description="The served model.")
    revision: str | None = Field(default=None, description="Revision that the spec asks for.")
    fingerprint: str | None = Field(
        default=None, description="KV fingerprint: only replicas of equal fingerprint pass KV cache to each other."
    )
    rollout: RolloutStatus | None = Field(
        default=None, description="Rollout that is under way or has failed. Absent where there is none."
    )
    prefill: RoleStatus | None = Field(default=None, description="The prefill pool.")
    decode: RoleStatus | None = Field(default=None, description="The decode pool.")
    router: RouterStatus | None = Field(default=None, description="The router.")
    slo: SloStatus | None = Field(default=None, description="Latency targets and what was measured.")
    scaling: ScalingStatus | None = Field(default=None, description="How the pools were scaled.")
