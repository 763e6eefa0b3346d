"""Waiting for a condition with a deadline: for asyncio, and for tests of real processes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait until `condition`, which may be a coroutine function, gives a true value."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        assert loop.time() < end, "the condition did not come true in time"
        await asyncio.sleep(0.002)


def until_blocking(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of `condition`; blocks the thread."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)
    return value
