"""Rounds of scaling are bounded in number, and less frequent while the operator does not keep up."""

from __future__ import annotations

import asyncio
import math

import pytest
from prometheus_client import CollectorRegistry
from tests.operator.conftest import until

from phasewise_operator.scaling import pace
from phasewise_operator.scaling.metrics import ScalingMetrics
from phasewise_operator.scaling.pace import LONGEST_STRETCH, Pace


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def shared(registry: CollectorRegistry) -> Pace:
    return Pace(ScalingMetrics(registry).lag)


def test_a_single_late_round_changes_little(shared: Pace) -> None:
    for _ in range(20):
        shared.began_late(0.0)
    shared.began_late(1.0)
    assert shared.stretch == 1.0


@pytest.mark.parametrize(("late", "stretch"), [(0.05, 1.0), (0.6, 2.0), (60.0, LONGEST_STRETCH)])
def test_rounds_that_go_on_beginning_late_are_made_less_often(late: float, stretch: float, shared: Pace) -> None:
    for _ in range(200):
        shared.began_late(late)
    assert shared.stretch == pytest.approx(stretch)
    for _ in range(200):
        shared.began_late(0.0)
    assert shared.stretch == pytest.approx(1.0), "and as often as before when it keeps up again"


async def test_the_lag_is_unknown_until_a_round_has_followed_another(shared: Pace, registry: CollectorRegistry) -> None:
    async with shared.round(None):
        assert math.isnan(registry.get_sample_value("phasewise_scaling_lag_seconds") or 0.0)
    assert shared.stretch == 1.0
    async with shared.round(asyncio.get_running_loop().time() - 3.0):
        assert registry.get_sample_value("phasewise_scaling_lag_seconds") == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize(("due", "slots"), [(0.0, "ROUNDS_AT_ONCE"), (None, "FIRST_ROUNDS_AT_ONCE")])
async def test_no_more_rounds_run_at_once_than_there_are_slots(
    due: float | None, slots: str, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, slots, 3)
    shared, running, seen, ended = Pace(ScalingMetrics(registry).lag), 0, list[int](), asyncio.Event()

    async def make_round() -> None:
        nonlocal running
        async with shared.round(due):
            running += 1
            seen.append(running)
            await ended.wait()
            running -= 1

    rounds = [asyncio.create_task(make_round()) for _ in range(10)]
    await until("three rounds run", lambda: running == 3)
    ended.set()
    await asyncio.gather(*rounds)
    assert (len(seen), max(seen)) == (10, 3)


@pytest.mark.parametrize("late", [3.0, 30.0])
def test_a_single_service_is_looked_at_as_often_as_before_soon_after_a_stall(
    late: float, shared: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rounds are made of it, so that an average over rounds alone would remember the stall for minutes."""
    now = 1000.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    shared.began_late(late)
    assert shared.stretch == LONGEST_STRETCH
    while shared.stretch > 1.0:
        now += 2.0 * shared.stretch
        shared.began_late(0.0)
    assert now - 1000.0 < 60
