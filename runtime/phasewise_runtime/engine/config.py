"""EngineConfig: the operator's settings for the launcher of one engine pod, as JSON in one environment variable.

The operator's render package builds it. Pure. It carries no secret, only the folder in which one is mounted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from phasewise_runtime import contract

ArgValue: TypeAlias = "str | int | float | bool | list[str]"
Role: TypeAlias = Literal["prefill", "decode"]
Device: TypeAlias = Literal["cpu", "gpu"]


class ConfigError(ValueError):
    """The configuration cannot be used; the message says what to change."""


@dataclass(frozen=True)
class EngineConfig:
    """One engine pod. `args`: vLLM arguments by name without dashes; true is a bare flag, false is `--no-…`."""

    service: str
    role: Role
    model_uri: str
    model_name: str
    disaggregated: bool = True
    """False: there is no prefill pool; decode engines do both phases."""
    device: Device = "gpu"
    tensor: int = 1
    pipeline: int = 1
    peer_tensor: int | None = None
    """`tensor` of the other role: KV transfer limits how the two may differ."""
    args: Mapping[str, ArgValue] = field(default_factory=dict[str, ArgValue])
    max_generation_seconds: float = 600
    itl_target_ms: float | None = None
    """Inter-token latency target; sizes chunked prefill where one engine does both phases."""
    kv_lease_seconds: float = 30
    settle_seconds: float = 2
    startup_seconds: float = 3600
    secrets_dir: str | None = None
    """Folder of the mounted model secret (`spec.model.secretRef`), one file a key."""
    engine_port: int = contract.ENGINE_PORT
    launcher_port: int = contract.LAUNCHER_PORT
    nixl_port: int = contract.NIXL_SIDE_CHANNEL_PORT

    def __post_init__(self) -> None:
        for name, (accepts, description) in _RULES.items():
            value = getattr(self, name)
            if not accepts(value):
                raise ConfigError(f"{name} must be {description}, not {value!r}")
        if self.role == contract.PREFILL and not self.disaggregated:
            raise ConfigError("role prefill needs disaggregated true: with no prefill pool there are only decode pods")

    @property
    def gpus(self) -> int:
        """GPUs that one pod needs."""
        return self.tensor * self.pipeline if self.device == "gpu" else 0

    def to_json(self) -> str:
        """Canonical: equal configurations give equal text, so that it can stand in a hashed pod template."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        try:
            raw: object = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{contract.ENV_ENGINE_CONFIG} is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise ConfigError(f"{contract.ENV_ENGINE_CONFIG} must be a JSON object, not {type(raw).__name__}")
        values = cast("dict[str, Any]", raw)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        if unknown := sorted(values.keys() - fields.keys()):
            raise ConfigError(f"unknown fields {', '.join(unknown)}: operator and launcher must be of one version")
        required = {n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING}
        if missing := sorted(required - values.keys()):
            raise ConfigError(f"missing fields {', '.join(missing)}")
        return cls(**values)


Rule: TypeAlias = "tuple[Callable[[Any], bool], str]"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_port(value: object) -> bool:
    return _is_count(value) and 0 < cast("int", value) < 65536


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seconds(value: object) -> bool:
    return _is_number(value) and cast("float", value) >= 0


def _is_args(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    items = cast("Mapping[object, object]", value).items()
    return all(_is_name(k) and _is_arg_value(v) for k, v in items)


def _is_arg_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in cast("list[object]", value))
    return isinstance(value, (str, int, float, bool))


_NAME: Final[Rule] = (_is_name, "a non-empty text")
_COUNT: Final[Rule] = (_is_count, "a whole number of at least 1")
_SECONDS: Final[Rule] = (_is_seconds, "a number of seconds, 0 or more")
_BOOL: Final[Rule] = (lambda v: isinstance(v, bool), "true or false")
_PORT: Final[Rule] = (_is_port, "a port number")

_RULES: Final[Mapping[str, Rule]] = {
    "service": _NAME,
    "role": (lambda v: v in contract.ENGINE_ROLES, "prefill or decode"),
    "model_uri": _NAME,
    "model_name": _NAME,
    "disaggregated": _BOOL,
    "device": (lambda v: v in ("cpu", "gpu"), "cpu or gpu"),
    "tensor": _COUNT,
    "pipeline": _COUNT,
    "peer_tensor": (lambda v: v is None or _is_count(v), "a whole number of at least 1, or null"),
    "args": (_is_args, "a mapping of argument names to text, numbers, booleans or lists of text"),
    "max_generation_seconds": (lambda v: _is_seconds(v) and v > 0, "a number of seconds above 0"),
    "itl_target_ms": (lambda v: v is None or (_is_number(v) and v > 0), "a number of milliseconds above 0, or null"),
    "kv_lease_seconds": (lambda v: _is_number(v) and v >= 6, "at least 6 seconds: vLLM renews it six times"),
    "settle_seconds": _SECONDS,
    "startup_seconds": _SECONDS,
    "secrets_dir": (lambda v: v is None or (_is_name(v) and v.startswith("/")), "an absolute folder, or null"),
    "engine_port": _PORT,
    "launcher_port": _PORT,
    "nixl_port": _PORT,
}
