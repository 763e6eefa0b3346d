"""The API of Phasewise as pydantic models: the only source of ``crds/``.

Code outside imports a model from here or from its module.
"""

from phasewise_operator.api.base import ApiModel, LocalRef
from phasewise_operator.api.durations import Duration, PositiveDuration
from phasewise_operator.api.pool import (
    Accelerator,
    Parallelism,
    Pool,
    PoolScalerSpec,
    PoolScalerStatus,
    Replicas,
    Resources,
    Role,
)
from phasewise_operator.api.spec import (
    ApiKeys,
    Engine,
    EngineDevice,
    EngineType,
    ImagePullPolicy,
    InferenceServiceSpec,
    Model,
    Router,
    Scaling,
    ScalingMode,
    Slo,
)
from phasewise_operator.api.status import (
    Condition,
    ConditionStatus,
    InferenceServiceStatus,
    ModelStatus,
    RoleStatus,
    RouterStatus,
    SloMeasure,
    SloStatus,
)

__all__ = [
    "Accelerator",
    "ApiKeys",
    "ApiModel",
    "Condition",
    "ConditionStatus",
    "Duration",
    "Engine",
    "EngineDevice",
    "EngineType",
    "ImagePullPolicy",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "LocalRef",
    "Model",
    "ModelStatus",
    "Parallelism",
    "Pool",
    "PoolScalerSpec",
    "PoolScalerStatus",
    "PositiveDuration",
    "Replicas",
    "Resources",
    "Role",
    "RoleStatus",
    "Router",
    "RouterStatus",
    "Scaling",
    "ScalingMode",
    "Slo",
    "SloMeasure",
    "SloStatus",
]
