"""Durations as Go writes them and Kubernetes reads them: "500ms", "1.5s", "1m30s", "1h2m".

The grammar is that of Go's time.ParseDuration without a sign, which is also what CEL's duration() reads.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

import durationpy
from pydantic import ConfigDict, RootModel, model_validator

from phasewise_operator.api import rules


def _complete_schema(schema: dict[str, Any], model: type[Duration]) -> None:
    schema.update(maxLength=rules.DURATION_LENGTH, pattern=rules.DURATION_PATTERN)
    schema.update(rules.validations(rules.duration_between(model.lowest, model.highest, model.message)))


class Duration(RootModel[str]):
    """A duration such as 500ms, 1.5s, 1m30s or 2h."""

    model_config = ConfigDict(frozen=True, json_schema_extra=_complete_schema)

    lowest: ClassVar[str | None] = None
    highest: ClassVar[str | None] = None
    message: ClassVar[str] = "write a duration such as 500ms, 1.5s, 1m30s or 2h (units ms, s, m and h)"

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return _seconds(self.root)

    @model_validator(mode="after")
    def _is_allowed(self) -> Self:
        if not self._is_duration() or not self._is_within_bounds():
            raise ValueError(self.message)
        return self

    def _is_duration(self) -> bool:
        return len(self.root) <= rules.DURATION_LENGTH and re.fullmatch(rules.DURATION_PATTERN, self.root) is not None

    def _is_within_bounds(self) -> bool:
        above = self.lowest is None or self.seconds >= _seconds(self.lowest)
        return above and (self.highest is None or self.seconds <= _seconds(self.highest))

    def __str__(self) -> str:
        return self.root


def _seconds(text: str) -> float:
    return durationpy.from_str(text).total_seconds()


class PositiveDuration(Duration):
    """A duration above zero, such as 500ms, 1.5s or 1m30s."""

    lowest = "1us"
    message = "write a duration above zero such as 500ms, 1.5s or 1m30s (units ms, s, m and h)"


class MaxGenerationDuration(Duration):
    """A duration from 10s to 24h."""

    lowest = "10s"
    highest = "24h"
    message = "write a duration from 10s to 24h such as 600s, 10m or 1h30m"


class HoldDuration(Duration):
    """A duration of at most 1h; 0s is possible."""

    highest = "1h"
    message = "write a duration from 0s to 1h such as 30s or 1m30s"
