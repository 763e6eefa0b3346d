"""Lets a scraper of an idle service wait for the next request instead of polling.

One future is shared by all waiting clients, so an arrival costs nothing while there are none.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping

MAX_WAIT_SECONDS = 60.0
_COUNT = re.compile(r"[0-9]{1,18}")


class Activity:
    def __init__(self) -> None:
        self.arrivals = 0
        self._moved: asyncio.Future[None] | None = None
        self._closed = False

    def arrived(self) -> None:
        self.arrivals += 1
        self._wake()

    def close(self) -> None:
        """End all waits: the process ends."""
        self._closed = True
        self._wake()

    async def other_than(self, since: int, seconds: float) -> int:
        """Wait until the number of arrivals is not `since`, for `seconds` at most; returns the number."""
        if self.arrivals == since and not self._closed:
            if self._moved is None:
                self._moved = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._moved}, timeout=seconds)
        return self.arrivals

    def _wake(self) -> None:
        if self._moved is not None:
            self._moved.set_result(None)
            self._moved = None


def read_query(query: Mapping[str, str]) -> tuple[int, float]:
    """`since` and `seconds` of a request; ValueError says what to write."""
    since, seconds = query.get("since", ""), _number(query.get("seconds", ""))
    if not _COUNT.fullmatch(since):
        raise ValueError("'since' is no count: write the last number answered here, such as ?since=0&seconds=30")
    if seconds is None:
        raise ValueError("'seconds' is no duration: write the longest wait, such as ?since=0&seconds=30")
    return int(since), min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number
