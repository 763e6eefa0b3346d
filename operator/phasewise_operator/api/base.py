"""What every model of the API shares: the pydantic settings, small field types and how a schema carries CEL rules."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, to_jsonable_python

from phasewise_operator.api.rules import QUANTITY, QUANTITY_PATTERN, Rule, validations

DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
RESOURCE_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


class ApiModel(BaseModel):
    """A part of a Phasewise resource: frozen, camelCase outside.

    Fields that it does not know are passed over: the CRD may be of a newer version than the operator, and then every
    stored object may have one. The API server removes what its CRD does not know, and kubectl refuses it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def to_json(self) -> dict[str, Any]:
        """Return the object as the API server takes it: camelCase, and no key where there is no value."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def readable(cls, stored: object) -> dict[str, Any]:
        """The part of a stored object that this version can read, as JSON.

        For a status: another version may have written it, or a person, and it must not stop the operator from writing
        a better one. A value that is not valid is left out, and so is what lacks a field that it needs.
        """
        while True:
            try:
                model = cls.model_validate(stored)
            except ValidationError as error:
                left = _without(stored, {_at_fault(detail) for detail in error.errors(include_url=False)})
                stored = {} if left == stored else left
            else:
                return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)

    def set_fields(self, *names: str) -> dict[str, Any]:
        """Return the named fields (all, if none is named) that are neither empty nor at their default, as JSON.

        A field of a newer version that nobody has set yet is not in it, so it may be hashed. Parts are reduced in the
        same way; free maps, such as a pod template or engine arguments, are returned as they were written.
        """
        fields = type(self).model_fields
        found: dict[str, Any] = {}
        for name in names or fields:
            value = getattr(self, name)
            if value == fields[name].get_default(call_default_factory=True, validated_data={}):
                continue
            reduced = value.set_fields() if isinstance(value, ApiModel) else to_jsonable_python(value)
            if reduced not in (None, {}, [], ""):
                found[name] = reduced
        return found


Path = tuple[int | str, ...]
_LEFT_OUT = object()


def _at_fault(error: ErrorDetails) -> Path:
    """What is to be left out: the value itself, or the object that lacks a field."""
    return error["loc"][:-1] if error["type"] == "missing" else error["loc"]


def _without(value: Any, paths: set[Path]) -> Any:
    """A copy without what lies at these paths; `{}` where that is everything. A path may end below a plain value: a
    validator's own steps are in it."""
    left = _reduced(value, paths)
    return {} if left is _LEFT_OUT else left


def _reduced(value: Any, paths: set[Path]) -> Any:
    if not paths:
        return value
    if () in paths or not isinstance(value, dict | list):
        return _LEFT_OUT
    below: defaultdict[int | str, set[Path]] = defaultdict(set)
    for path in paths:
        below[path[0]].add(path[1:])
    if isinstance(value, list):
        items = [_reduced(item, below[n]) for n, item in enumerate(cast("list[Any]", value))]
        return [item for item in items if item is not _LEFT_OUT]
    members = {k: _reduced(v, below[k]) for k, v in cast("dict[str, Any]", value).items()}
    return {k: v for k, v in members.items() if v is not _LEFT_OUT}


def with_rules(*rules: Rule) -> ConfigDict:
    """Return a model's settings with CEL rules on its schema."""
    return ConfigDict(json_schema_extra=validations(*rules))


class LocalRef(ApiModel):
    """The name of an object in the namespace of the InferenceService."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN, description="Name of the object.")]


Quantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
            "x-kubernetes-validations": [QUANTITY.to_schema()],
        }
    ),
]
"""A Kubernetes resource quantity, such as 4, "500m" or "32Gi"."""

StringMap = Annotated[dict[str, Annotated[str, Field(max_length=253)]], Field(max_length=16)]
"""A bounded map of strings: labels, node selectors."""

PodTemplate = Annotated[
    dict[str, JsonValue],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "metadata": {
                    "type": "object",
                    "description": "Labels and annotations added to the pods.",
                    "properties": {
                        name: {
                            "type": "object",
                            "description": f"Pod {name} to add; those of Phasewise itself cannot be changed.",
                            "additionalProperties": {"type": "string"},
                        }
                        for name in ("labels", "annotations")
                    },
                },
                "spec": {
                    "type": "object",
                    "description": "Partial pod spec; lists are merged by name or mountPath.",
                    "x-kubernetes-preserve-unknown-fields": True,
                },
            },
        }
    ),
]
"""A partial PodTemplateSpec, merged into the rendered one by the operator."""
