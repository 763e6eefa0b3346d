"""The load of each pod: exact integrals over time, whose series go with the pod and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise_runtime.contract import METRIC_POD_BUSY_SECONDS, METRIC_POD_INFLIGHT_SECONDS, METRIC_POD_REQUESTS
from phasewise_runtime.router.collectors import POD_INFLIGHT
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import Pod

POD = Pod("u0", "d0", "decode", "10.0.0.1", "fp", ready=True)
NO_SERIES = (None, None, None, None)


class Watched:
    """A registry with one pod, on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics()
        self.pod_registry = PodRegistry(self.metrics, lambda: self.now)
        self.pod_registry.replace_all([POD])

    def samples(self, pod: Pod = POD) -> tuple[float | None, ...]:
        """Requests in flight, requests served, request-seconds and busy seconds."""
        labels = {"role": pod.role, "pod": pod.name}
        names = (POD_INFLIGHT, METRIC_POD_REQUESTS, METRIC_POD_INFLIGHT_SECONDS, METRIC_POD_BUSY_SECONDS)
        return tuple(self.metrics.registry.get_sample_value(n, labels) for n in names)


async def test_a_pod_has_its_series_from_when_it_is_added() -> None:
    assert Watched().samples() == (0, 0, 0, 0)


async def test_requests_at_once_add_up_in_flight_and_count_once_as_busy_time() -> None:
    w = Watched()
    with w.pod_registry.inflight(POD) as first:
        w.now += 2.0
        with w.pod_registry.inflight(POD) as second:
            w.now += 3.0
            second.succeeded = True
        w.now += 1.0
        first.succeeded = True
    w.now += 10.0
    assert w.samples() == (0, 2, 9.0, 6.0)


@pytest.mark.parametrize("succeeded", [True, False])
async def test_the_time_of_a_request_counts_while_it_runs_and_however_it_ends(succeeded: bool) -> None:
    w = Watched()
    with w.pod_registry.inflight(POD) as request:
        w.now += 4.0
        assert w.samples() == (1, 0, 4.0, 4.0)
        assert w.samples() == (1, 0, 4.0, 4.0), "a second read adds nothing"
        w.now += 1.0
        assert w.samples() == (1, 0, 5.0, 5.0)
        request.succeeded = succeeded
    assert w.samples() == (0, int(succeeded), 5.0, 5.0)


async def test_the_series_of_a_removed_pod_go_when_its_last_request_has_ended() -> None:
    w = Watched()
    with w.pod_registry.reserve(POD), w.pod_registry.inflight(POD):
        with w.pod_registry.inflight(POD) as other:
            w.pod_registry.remove(POD.uid)
            other.succeeded = True
            w.now += 1.0
        assert w.samples() == (1, 1, 2.0, 1.0)
    assert w.samples() == NO_SERIES


async def test_the_series_of_a_pod_that_was_only_reserved_go_too() -> None:
    w = Watched()
    with w.pod_registry.reserve(POD):
        w.pod_registry.remove(POD.uid)
    assert w.samples() == NO_SERIES


async def test_a_late_request_to_a_removed_pod_leaves_no_series() -> None:
    w = Watched()
    w.pod_registry.remove(POD.uid)
    with w.pod_registry.inflight(POD) as request:
        assert request.cut.done()
        w.now += 1.0
        assert w.samples() == (1, 0, 1.0, 1.0)
    assert w.samples() == NO_SERIES


@pytest.mark.parametrize("first", ["old request ends", "old pod goes"])
async def test_a_pod_of_the_same_name_keeps_the_counts(first: str) -> None:
    """As in a set whose pods have fixed names: the new pod is there before the old one's requests have ended."""
    w, new = Watched(), replace(POD, uid="u1")
    request = w.pod_registry.inflight(POD)
    request.__enter__().succeeded = True
    w.now += 1.0
    w.pod_registry.put(new)
    if first == "old pod goes":
        w.pod_registry.remove(POD.uid)
    request.__exit__(None, None, None)
    w.pod_registry.remove(POD.uid)
    assert w.samples() == (0, 1, 1.0, 1.0)
    w.pod_registry.remove(new.uid)
    assert w.samples() == NO_SERIES


async def test_a_pod_that_comes_back_while_its_request_runs_loses_nothing() -> None:
    w = Watched()
    with w.pod_registry.inflight(POD):
        w.pod_registry.remove(POD.uid)
        w.now += 1.0
        w.pod_registry.put(POD)
        w.now += 1.0
    assert w.samples() == (0, 0, 2.0, 2.0)
