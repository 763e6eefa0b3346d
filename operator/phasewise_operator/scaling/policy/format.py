"""Figures in the messages of decisions: two significant digits, so that noise does not rewrite a message. Pure."""

from __future__ import annotations

import math


def figure(value: float) -> str:
    """Two significant digits, without an exponent: 0.61, 2.4, 13, 480."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    digits = 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:.{max(0, digits)}f}" if abs(rounded) < 10 else f"{rounded:.0f}"


def seconds(value: float) -> str:
    """A duration: milliseconds below a tenth of a second."""
    return f"{figure(value * 1000)} ms" if abs(value) < 0.1 else f"{figure(value)} s"


def percent(share: float) -> str:
    """A share as people say targets: 97.5 %."""
    return f"{share * 100:.4g} %"


def counted(number: int, noun: str) -> str:
    """With its noun, in the plural where it must be."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
