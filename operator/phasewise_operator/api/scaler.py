"""PoolScaler: the stable target that an outside autoscaler scales, one for each pool of an InferenceService.

Imports pydantic and the rest of ``api`` only.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from phasewise_operator.api import rules
from phasewise_operator.api.base import ApiModel, LocalRef, with_rules
from phasewise_runtime import contract


class Role(StrEnum):
    """A pool of an InferenceService."""

    PREFILL = contract.PREFILL
    DECODE = contract.DECODE


class PoolScalerSpec(ApiModel):
    """How many replicas a pool should have."""

    model_config = with_rules(rules.immutable("serviceRef"), rules.immutable("role"))

    replicas: int = Field(ge=0, le=10000, description="Replicas asked for; the pool's bounds and budget still hold.")
    service_ref: LocalRef = Field(description="The InferenceService that the pool belongs to.")
    role: Role = Field(description="The pool: prefill or decode.")


class PoolScalerStatus(ApiModel):
    """What the pool has."""

    observed_generation: int | None = Field(None, ge=0, description="metadata.generation that this is about.")
    replicas: int | None = Field(None, ge=0, description="Replicas that the pool has.")
    selector: str | None = Field(None, description="Label selector of the pool's pods, for autoscalers.")
