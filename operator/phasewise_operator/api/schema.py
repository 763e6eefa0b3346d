"""Structural schemas, the dialect that the API server accepts, from pydantic models.

Raw pydantic schemas are refused by the API server ($ref, anyOf with null, additionalProperties beside properties) or
lose parts silently (const). What cannot be carried over raises here instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

Schema: TypeAlias = dict[str, Any]

_KEYWORDS: Final = frozenset(
    {
        "type",
        "description",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "default",
        "enum",
        "pattern",
        "format",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "maxProperties",
        "anyOf",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
    }
)


class UnsupportedSchemaError(ValueError):
    """A model says something that a structural schema cannot."""


class _Generator(GenerateJsonSchema):
    """pydantic's generator, with "may be left out" in place of "may be null"."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return _without_null_defaults(super().default_schema(schema))


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model."""
    raw = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    definitions = cast("dict[str, Schema]", raw.pop("$defs", {}))
    return _structural(raw, definitions, model.__name__)


def _without_null_defaults(schema: Schema) -> Schema:
    if "default" not in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "default"}
    default = _without_nulls(schema["default"])
    return rest if default is None else rest | {"default": default}


def _without_nulls(value: Any) -> Any:
    """Drop null members: in the default of an object they would stand for fields that are left out."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {k: _without_nulls(v) for k, v in members.items() if v not in (None, {}, [])}
    return value


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Schema], path: str) -> Schema:
    schema = _inlined(node, definitions)
    schema.pop("title", None)
    if schema.get("additionalProperties") in (False, True):
        del schema["additionalProperties"]
    if unsupported := schema.keys() - _KEYWORDS:
        raise UnsupportedSchemaError(f"{path}: {', '.join(sorted(unsupported))} cannot be in a structural schema")
    if "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        raise UnsupportedSchemaError(f"{path}: anyOf is possible for integer-or-string only")
    if isinstance(properties := schema.get("properties"), dict):
        members = cast("dict[str, Schema]", properties)
        schema["properties"] = {k: _structural(v, definitions, f"{path}.{k}") for k, v in members.items()}
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            schema[keyword] = _structural(schema[keyword], definitions, f"{path}[]")
    return schema


def _inlined(node: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Put the definition in place of its reference; what stands beside a reference wins."""
    if "$ref" not in node:
        return dict(node)
    name = cast("str", node["$ref"]).removeprefix("#/$defs/")
    beside = {key: value for key, value in node.items() if key != "$ref"}
    return {**_inlined(definitions[name], definitions), **beside}
