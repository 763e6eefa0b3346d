"""A structural schema carries what the API server accepts, and refuses the rest loudly."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from phasewise_operator.api.base import ApiModel, PodTemplate, Quantity, with_rules
from phasewise_operator.api.rules import Rule
from phasewise_operator.api.schema import UnsupportedSchemaError, structural_schema


class Colour(StrEnum):
    RED = "red"


class Inner(ApiModel):
    """Inner."""

    model_config = with_rules(Rule("self.count > 0", "write a count above 0", ".count"))

    count: int = Field(default=1, ge=0)
    note: str | None = None


class Outer(ApiModel):
    """Outer."""

    inner: Inner = Field(default=Inner(), description="Complete default.")
    left_out: Inner | None = Field(default=None, description="No default.")
    colour: Colour = Colour.RED
    quantities: dict[str, Quantity] = Field(default_factory=dict[str, int | str], max_length=4)
    template: PodTemplate | None = None


INNER: dict[str, Any] = {
    "description": "Inner.",
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0, "default": 1}, "note": {"type": "string"}},
    "x-kubernetes-validations": [{"rule": "self.count > 0", "message": "write a count above 0", "fieldPath": ".count"}],
}


def test_references_are_put_in_place_with_complete_defaults() -> None:
    properties = structural_schema(Outer)["properties"]
    assert properties["inner"] == INNER | {"description": "Complete default.", "default": {"count": 1}}
    assert properties["leftOut"] == INNER | {"description": "No default."}


def test_an_enumeration_keeps_its_values_and_default() -> None:
    colour = structural_schema(Outer)["properties"]["colour"]
    assert colour == {"type": "string", "enum": ["red"], "default": "red"}


def test_a_quantity_is_an_integer_or_a_string() -> None:
    quantities = structural_schema(Outer)["properties"]["quantities"]
    assert quantities["maxProperties"] == 4
    assert quantities["additionalProperties"]["x-kubernetes-int-or-string"] is True
    assert "type" not in quantities["additionalProperties"]


def test_a_pod_template_keeps_unknown_fields_below_spec_only() -> None:
    template = structural_schema(Outer)["properties"]["template"]
    assert "x-kubernetes-preserve-unknown-fields" not in template
    assert template["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] is True


class Either(BaseModel):
    value: int | str


class Constant(BaseModel):
    value: Literal["only"]


class Exclusive(BaseModel):
    value: int = Field(gt=0)


class Nested(BaseModel):
    value: list[Annotated[int, Field(multiple_of=2)]]


class BoundedKeys(BaseModel):
    value: dict[Annotated[str, Field(max_length=3)], str]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Either, "Either.value: anyOf"),
        (Constant, "Constant.value: const"),
        (Exclusive, "Exclusive.value: exclusiveMinimum"),
        (Nested, r"Nested.value\[\]: multipleOf"),
        (BoundedKeys, "BoundedKeys.value: propertyNames"),
    ],
)
def test_a_schema_keyword_without_equivalent_is_refused_with_its_path(model: type[BaseModel], message: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=message):
        structural_schema(model)
