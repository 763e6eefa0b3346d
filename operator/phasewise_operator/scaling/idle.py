"""Waits on the routers of an idle service for a request, so that it costs next to nothing and a burst is seen. I/O."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from phasewise_operator.scaling.scrape import Scraper
from phasewise_operator.scaling.signals.history import History, ScrapeTarget
from phasewise_runtime import contract

IDLE_SECONDS: Final = 60.0
"""The longest single wait for a request."""
LEAST_SECONDS: Final = 0.5
"""Between two rounds, and between two waits for one router, in any case."""
BLIND_SECONDS: Final = 3.0
"""Until a router that does not answer is asked again."""


async def wait_for_request(
    scraper: Scraper, routers: Sequence[ScrapeTarget], history: History, changed: asyncio.Event, seconds: float
) -> None:
    """Until a router has received a request that is not in the history, `changed` is set, or for so many seconds."""
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(_request_at(scraper, r, history)) for r in routers]
    waits.append(asyncio.create_task(changed.wait()))
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _request_at(scraper: Scraper, router: ScrapeTarget, history: History) -> None:
    newest = history.newest.get(router.uid)
    since = int(sum(newest.scrape.metrics.counters.get(contract.METRIC_ARRIVALS, {}).values())) if newest else 0
    count: int | None = since
    while count == since:
        began = time.monotonic()
        count = await scraper.wait_activity(router.address, since, IDLE_SECONDS)
        await asyncio.sleep(max(0.0, began + LEAST_SECONDS - time.monotonic()) if count == since else 0)
    if count is None:
        await asyncio.sleep(BLIND_SECONDS)
