"""Durations: Go's grammar without a sign, bounds, and one message that says what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from phasewise_operator.api import InferenceServiceSpec, PositiveDuration, rules
from phasewise_operator.api.durations import Duration, HoldDuration, MaxGenerationDuration
from phasewise_operator.api.schema import structural_schema

UNITS = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}
GO_LONGEST_SECONDS = 2**63 / 1e9


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("40ms", 0.04),
        ("1.5s", 1.5),
        ("2m", 120),
        ("300s", 300),
        ("1m30s", 90),
        ("1h2m", 3720),
        ("1h0m0.5s", 3600.5),
        ("1s1s", 2),
        ("1.s", 1),
        (".5s", 0.5),
        ("250us", 0.00025),
        ("250\u00b5s", 0.00025),
        ("250\u03bcs", 0.00025),
        ("3000ns", 0.000003),
        ("0s", 0),
        ("0", 0),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    duration = Duration(text)
    assert duration.seconds == pytest.approx(seconds)
    assert str(duration) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "500",
        "5 seconds",
        "-1s",
        "+1s",
        "1d",
        "PT5S",
        ".s",
        "1..5s",
        "1 m",
        "1m 30s",
        "s",
        "1h30",
        "00",
        "1s\n",
        "\u0661s",
    ],
)
def test_other_texts_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(Duration.message)):
        Duration(text)


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4))
def test_a_sum_of_parts_is_their_sum(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert Duration(text).seconds == pytest.approx(sum(number * UNITS[unit] for number, unit in parts))


def test_the_longest_text_is_a_duration_that_go_and_cel_can_hold() -> None:
    assert Duration("999999h999999h99999h").seconds < GO_LONGEST_SECONDS
    with pytest.raises(ValidationError):
        Duration("999999h999999h999999h")


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (PositiveDuration, ["1us", "1ms"], ["0", "0s", "0ms"]),
        (MaxGenerationDuration, ["10s", "10000ms", "24h", "1440m"], ["9.9s", "0s", "24h1s", "25h"]),
        (HoldDuration, ["0s", "1h", "59m60s"], ["1h1ms", "61m"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_bounds_belong_to_the_allowed_durations(kind: type[Duration], inside: list[str], outside: list[str]) -> None:
    for text in inside:
        assert kind(text).root == text
    for text in outside:
        with pytest.raises(ValidationError, match=re.escape(kind.message)):
            kind(text)


def test_the_schema_has_the_same_pattern_bounds_and_message_as_the_model() -> None:
    schema = structural_schema(MaxGenerationDuration)
    assert (schema["pattern"], schema["maxLength"]) == (rules.DURATION_PATTERN, rules.DURATION_LENGTH)
    assert schema["x-kubernetes-validations"] == [
        {
            "rule": f"self.matches('{rules.DURATION_PATTERN}') && duration(self) >= duration('10s')"
            " && duration(self) <= duration('24h')",
            "message": "write a duration from 10s to 24h such as 600s, 10m or 1h30m",
        }
    ]


def test_the_renamed_fields_have_no_default_so_that_the_operator_sees_what_was_written() -> None:
    fields: dict[str, Any] = structural_schema(InferenceServiceSpec)["properties"]
    for name in ("maxGeneration", "hold", "maxGenerationSeconds", "holdSeconds"):
        assert "default" not in fields[name]
    assert "Left out: 10m." in fields["maxGeneration"]["description"]
    assert "Left out: 30s." in fields["hold"]["description"]


@pytest.mark.parametrize(("name", "new"), [("maxGenerationSeconds", "maxGeneration"), ("holdSeconds", "hold")])
def test_an_old_name_is_refused_by_a_rule_on_itself_so_that_an_unchanged_value_passes(name: str, new: str) -> None:
    """The API server forgives the refusal where the field of the rule is unchanged and the rule reads no oldSelf."""
    field: dict[str, Any] = structural_schema(InferenceServiceSpec)["properties"][name]
    (rule,) = field["x-kubernetes-validations"]
    assert rule["rule"] == "false"
    assert f"{name} was renamed: write {new} with a unit" in rule["message"]
    assert field["description"].startswith(f"Deprecated: write {new}")
