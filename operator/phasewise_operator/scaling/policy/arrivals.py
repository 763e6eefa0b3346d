"""The rate of arrivals without its noise, and at once where it has truly changed. Pure; standard library only.

Ten seconds of five requests/s hold 36 to 64 requests by chance alone: sized by each, a pool would follow the dice.
"""

from __future__ import annotations

import math

AVERAGE_SECONDS = 30.0
"""Time constant while nothing but chance is seen."""
CHANCE = 2.0
"""Standard deviations of a Poisson count: passed upwards by chance in one load window of fifty. More would be calmer,
and late on a rising load."""


def steady(average: float | None, rate: float, window: float, elapsed: float) -> float:
    """The new average; the rate itself where it differs from the old average by more than chance."""
    if average is None or window <= 0:
        return rate
    chance = CHANCE * math.sqrt(max(average, rate) / window)
    if abs(rate - average) > chance:
        return rate
    return average + (rate - average) * min(1.0, elapsed / AVERAGE_SECONDS)
