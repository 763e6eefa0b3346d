"""The operator's HTTP server: what the kubelet's probes and Prometheus get."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from phasewise_operator.metrics import Metrics, start_server
from phasewise_runtime import contract


@pytest.fixture
async def address() -> AsyncIterator[str]:
    metrics = Metrics()
    metrics.leading.set(1)
    runner = await start_server(0, metrics, lambda: (True, "leading"))
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("path", [contract.PATH_LIVE, contract.PATH_READY])
async def test_probes_are_answered_by_who_leads_and_who_does_not(path: str, address: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(address + path) as answer:
        assert (answer.status, await answer.text()) == (200, "leading\n")


async def test_metrics_are_in_prometheus_text(address: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(address + contract.PATH_METRICS) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert "phasewise_operator_leading 1.0" in await answer.text()
