"""A pool of engine replicas, and PoolScaler: the target that an external autoscaler scales, one for each pool."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from phasewise_operator.api import rules
from phasewise_operator.api.base import (
    RESOURCE_NAME,
    ApiModel,
    LocalRef,
    PodTemplate,
    Quantity,
    StringMap,
    with_rules,
)
from phasewise_runtime import contract


class Replicas(ApiModel):
    """Bounds for the number of replicas."""

    model_config = with_rules(rules.REPLICAS_ORDER)

    min: int = Field(
        default=1,
        ge=0,
        le=10000,
        description="Lowest number of replicas; in scaling.mode Manual the number of replicas.",
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Highest number of replicas. Left out: min, so the pool is not scaled.",
    )


class Accelerator(ApiModel):
    """The accelerator of a pool's replicas."""

    model_config = with_rules(rules.EXTENDED_RESOURCE)

    resource: str = Field(
        default="nvidia.com/gpu",
        max_length=317,
        pattern=RESOURCE_NAME,
        description="Extended resource that a replica requests: parallelism.tensor x parallelism.pipeline of it.",
    )
    node_selector: StringMap = Field(
        default_factory=dict[str, str], description="Labels of the nodes that have the accelerator."
    )


ResourceList = Annotated[dict[str, Quantity], Field(max_length=16)]


class Resources(ApiModel):
    """CPU, memory and other resources; an accelerator follows from accelerator and parallelism."""

    model_config = with_rules(rules.REQUESTS_WITHIN_LIMITS)

    requests: ResourceList = Field(
        default_factory=dict[str, int | str], description="Resources reserved for a replica, such as cpu: 4."
    )
    limits: ResourceList = Field(
        default_factory=dict[str, int | str], description="Most that a replica may use, such as memory: 32Gi."
    )


class Parallelism(ApiModel):
    """How one replica is spread over accelerators."""

    model_config = with_rules(rules.ONE_POD)

    tensor: int = Field(default=1, ge=1, le=64, description="Tensor parallelism: accelerators that share each layer.")
    pipeline: int = Field(
        default=1, ge=1, le=64, description="Pipeline parallelism: stages that each hold a part of the layers."
    )

    @property
    def accelerators(self) -> int:
        """Accelerators that one replica needs."""
        return self.tensor * self.pipeline


class Pool(ApiModel):
    """A pool of equal engine replicas."""

    model_config = with_rules(rules.ACCELERATOR_NOT_IN_RESOURCES, rules.GPU_NEEDS_ACCELERATOR)

    replicas: Replicas = Field(default=Replicas(), description="Bounds for the number of replicas.")
    accelerator: Accelerator | None = Field(
        default=None, description="Accelerator of a replica. Left out: the engine runs on CPU."
    )
    resources: Resources | None = Field(
        default=None, description="Resources of the engine container, without the accelerator."
    )
    parallelism: Parallelism = Field(default=Parallelism(), description="How one replica is spread over accelerators.")
    template: PodTemplate | None = Field(
        default=None,
        description="Partial pod template, merged into the one that Phasewise renders. Its container is named engine.",
    )


class Role(StrEnum):
    """A pool of an InferenceService."""

    PREFILL = contract.PREFILL
    DECODE = contract.DECODE


class PoolScalerSpec(ApiModel):
    """How many replicas a pool should have."""

    model_config = with_rules(rules.immutable("serviceRef"), rules.immutable("role"))

    replicas: int = Field(
        ge=0, le=10000, description="Desired replicas. The pool's bounds and the GPU budget still apply."
    )
    service_ref: LocalRef = Field(description="The InferenceService that the pool belongs to.")
    role: Role = Field(description="The pool: prefill or decode.")


class PoolScalerStatus(ApiModel):
    """Size of the pool as the operator last observed it."""

    observed_generation: int | None = Field(None, ge=0, description="metadata.generation that this describes.")
    replicas: int | None = Field(None, ge=0, description="Replicas that the pool has.")
    selector: str | None = Field(None, description="Label selector of the pool's pods, for autoscalers.")
