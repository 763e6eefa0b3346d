"""How many rounds of scaling run at once, and how often they are made. Called by the loop; all its followers share one.

One event loop has a core at most. With more services under traffic than that can look at every two seconds, rounds
begin late, answers wait to be read and look as if pods had timed out, and every pool of every service would be held. So
a bounded number of rounds run at once, and while they begin late they are made less often: a size that is decided every
eight seconds is better than none.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import Gauge

ROUNDS_AT_ONCE: Final = 128
"""Of some ten pods each: a thousand answers are read in less than a second, before the last of them times out. And with
all slots taken by dead pods there still are 80 rounds a second."""
FIRST_ROUNDS_AT_ONCE: Final = 16
"""Of an operator that begins beside a thousand services: their pods are asked a few at a time."""
LAG_TOLERATED: Final = 0.1
"""Seconds: a pass over a large service in between."""
STRETCH_PER_SECOND: Final = 2.0
"""How much longer the interval gets for each second of lag: twice too many services settle at half a second of lag."""
LONGEST_STRETCH: Final = 4.0
"""Eight seconds: with more, gauges would be out of date (history.FRESH)."""
SMOOTHING: Final = 16
"""Rounds over which the lag is averaged: a single late one changes nothing."""
RECOVERY_SECONDS: Final = 10.0
"""A lag that has passed is forgotten in some three times this, where few rounds are made: of a single service sixteen
take two minutes."""


class Pace:
    def __init__(self, lag: Gauge) -> None:
        self._slots = asyncio.Semaphore(ROUNDS_AT_ONCE)
        self._first = asyncio.Semaphore(FIRST_ROUNDS_AT_ONCE)
        self._lag = math.nan
        self._noted = 0.0
        self._gauge = lag
        lag.set(math.nan)

    @property
    def stretch(self) -> float:
        """By which the interval between two rounds is multiplied: 1 while rounds begin in time."""
        if math.isnan(self._lag):
            return 1.0
        return min(LONGEST_STRETCH, 1.0 + STRETCH_PER_SECOND * max(0.0, self._lag - LAG_TOLERATED))

    @asynccontextmanager
    async def round(self, due: float | None) -> AsyncGenerator[None]:
        """A slot for one round. `due`: when it was to begin, on time.monotonic(); None: it is the follower's first."""
        async with self._first if due is None else self._slots:
            if due is not None:
                self.began_late(max(0.0, time.monotonic() - due))
            yield

    def began_late(self, seconds: float) -> None:
        now, weight = time.monotonic(), 1 / SMOOTHING
        if seconds < self._lag:
            weight = max(weight, min(1.0, (now - self._noted) / RECOVERY_SECONDS))
        self._noted = now
        self._lag = seconds if math.isnan(self._lag) else self._lag + (seconds - self._lag) * weight
        self._gauge.set(self._lag)
