"""Durations as people write them in Kubernetes: "500ms", "1.5s", "2m".

Pure; imports pydantic, durationpy and the rest of ``api``'s base.
"""

from __future__ import annotations

from typing import Annotated

import durationpy
from pydantic import ConfigDict, Field, RootModel

from phasewise_operator.api.base import with_rules
from phasewise_operator.api.rules import DURATION, DURATION_PATTERN, POSITIVE_DURATION

DurationText = Annotated[str, Field(max_length=16, pattern=DURATION_PATTERN)]


class Duration(RootModel[DurationText]):
    """A duration: a number and one of the units ms, s, m or h, such as 500ms, 1.5s or 2m."""

    model_config = ConfigDict(frozen=True) | with_rules(DURATION)

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return durationpy.from_str(self.root).total_seconds()

    def __str__(self) -> str:
        return self.root


class PositiveDuration(Duration):
    """A duration above zero: a number and one of the units ms, s, m or h, such as 500ms, 1.5s or 2m."""

    model_config = ConfigDict(frozen=True) | with_rules(POSITIVE_DURATION)
