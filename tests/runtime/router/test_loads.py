"""What each pod had to do: exact integrals over time, which go with the pod and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise_runtime.contract import METRIC_POD_BUSY_SECONDS, METRIC_POD_INFLIGHT_SECONDS, METRIC_POD_REQUESTS
from phasewise_runtime.router.fleet import Fleet
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pods import Pod

POD = Pod("u0", "d0", "decode", "10.0.0.1", "fp", ready=True)


class Watched:
    """A fleet with one pod, on a clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics()
        self.fleet = Fleet(self.metrics, lambda: self.now)
        self.fleet.replace_all([POD])

    def page(self, pod: Pod = POD) -> tuple[float | None, float | None, float | None]:
        """Legs that ended well, leg-seconds and busy seconds."""
        labels = {"role": pod.role, "pod": pod.name}
        names = (METRIC_POD_REQUESTS, METRIC_POD_INFLIGHT_SECONDS, METRIC_POD_BUSY_SECONDS)
        legs, inflight, busy = (self.metrics.registry.get_sample_value(n, labels) for n in names)
        return legs, inflight, busy


async def test_a_pod_has_its_series_from_when_it_is_seen() -> None:
    assert Watched().page() == (0, 0, 0)


async def test_legs_are_summed_and_busy_time_is_not() -> None:
    w = Watched()
    with w.fleet.leg(POD) as first:
        w.now += 2.0
        with w.fleet.leg(POD) as second:
            w.now += 3.0
            second.well = True
        w.now += 1.0
        first.well = True
    w.now += 10.0
    assert w.page() == (2, 9.0, 6.0)


async def test_a_long_leg_shows_while_it_runs() -> None:
    w = Watched()
    with w.fleet.leg(POD):
        w.now += 4.0
        assert w.page() == (0, 4.0, 4.0)
        assert w.page() == (0, 4.0, 4.0), "asking again adds nothing"
        w.now += 1.0
        assert w.page() == (0, 5.0, 5.0)


async def test_a_leg_that_ended_badly_is_not_counted_and_its_time_is() -> None:
    w = Watched()
    with w.fleet.leg(POD):
        w.now += 2.0
    assert w.page() == (0, 2.0, 2.0)


async def test_the_series_of_a_pod_go_when_it_is_gone_and_its_last_leg_has_ended() -> None:
    w = Watched()
    with w.fleet.reserve(POD), w.fleet.leg(POD):
        with w.fleet.leg(POD) as other:
            w.fleet.remove(POD.uid)
            other.well = True
            w.now += 1.0
        assert w.page() == (1, 2.0, 1.0)
    assert w.page() == (None, None, None)


async def test_the_series_of_a_pod_that_was_only_reserved_go_too() -> None:
    w = Watched()
    with w.fleet.reserve(POD):
        w.fleet.remove(POD.uid)
    assert w.page() == (None, None, None)


async def test_a_late_leg_of_a_pod_that_is_gone_leaves_no_series() -> None:
    w = Watched()
    w.fleet.remove(POD.uid)
    with w.fleet.leg(POD) as leg:
        assert leg.gone.done()
        w.now += 1.0
        assert w.page() == (0, 1.0, 1.0)
    assert w.page() == (None, None, None)


@pytest.mark.parametrize("first", ["old leg ends", "old pod goes"])
async def test_a_pod_of_the_same_name_keeps_what_was_counted(first: str) -> None:
    """As in a set whose pods have fixed names: the new one is there before the old one's legs have ended."""
    w, new = Watched(), replace(POD, uid="u1")
    leg = w.fleet.leg(POD)
    leg.__enter__().well = True
    w.now += 1.0
    w.fleet.put(new)
    if first == "old pod goes":
        w.fleet.remove(POD.uid)
    leg.__exit__(None, None, None)
    w.fleet.remove(POD.uid)
    assert w.page() == (1, 1.0, 1.0)
    w.fleet.remove(new.uid)
    assert w.page() == (None, None, None)


async def test_a_pod_that_comes_back_while_its_leg_runs_loses_nothing() -> None:
    w = Watched()
    with w.fleet.leg(POD):
        w.fleet.remove(POD.uid)
        w.now += 1.0
        w.fleet.put(POD)
        w.now += 1.0
    assert w.page() == (0, 2.0, 2.0)
