"""Shared by the tests of the scaling signals: targets, and how to read a router's metrics."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tests.runtime.router.conftest import Router
from tests.runtime.waiting import until

from phasewise_runtime.contract import SLO_RESULTS, WAIT_PHASES

LONG = 30.0
"""A target that every request meets."""
SHORT = 0.02
EASY = {"ttft_target_seconds": LONG, "itl_target_seconds": LONG}


async def judged(r: Router, requests: int = 1) -> dict[str, float]:
    """The results, once `requests` have ended: a client may see the end before the router has counted it."""
    await until(lambda: r.metric("requests_total") == requests)
    counts = {result: r.metric("slo_requests_total", result=result) for result in SLO_RESULTS}
    assert sum(counts.values()) == r.metric("slo_requests_total"), "no other results"
    return {k: v for k, v in counts.items() if v}


def awaiting(r: Router, name: str = "awaiting_first_token") -> dict[str, float]:
    counts = {phase: r.metric(name, phase=phase) for phase in WAIT_PHASES}
    return {k: v for k, v in counts.items() if v}


def overdue(r: Router) -> dict[str, float]:
    return awaiting(r, "overdue_first_token")


def served(r: Router) -> dict[str, float]:
    return {e.name: r.metric("pod_requests_total", pod=e.name, role=e.role) for e in r.engines}


async def leave(task: asyncio.Task[Any], r: Router) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await until(lambda: r.metric("requests_total", outcome="client_closed") == 1)
