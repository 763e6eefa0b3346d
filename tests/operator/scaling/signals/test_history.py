"""Round after round: what scrapes add to the history, and how much of the service is known."""

from __future__ import annotations

import pytest
from tests.operator.scaling.signals.exposition import Engine, Router
from tests.operator.scaling.signals.service import D, P, R, Service, pod

from phasewise_operator.scaling.signals.build import signals
from phasewise_operator.scaling.signals.history import FRESH, LOAD_WINDOW, SLO_WINDOW
from phasewise_operator.scaling.types import Coverage, Outcomes
from phasewise_runtime import contract

# --- rates -------------------------------------------------------------------------------------------------


def test_one_scrape_knows_gauges_and_no_rates(service: Service, router: Router) -> None:
    router.arrivals.inc(1000)
    router.ttft.observe(0.3)
    router.active.set(4)
    service.round()
    found = service.signals()
    assert (found.load_window, found.slo_window, found.arrivals, found.ttft, found.itl) == (0, 0, 0, None, None)
    assert found.active == 4
    assert found.pools[D].pods["d1"].concurrency is None
    assert found.routers == Coverage(1, 1)


def test_nothing_read_is_nothing_known(service: Service) -> None:
    found = service.signals()
    assert (found.at, found.load_window, found.routers) == (0, 0, Coverage(0, 1))
    assert (found.pools[P].coverage, found.pools[D].coverage) == (Coverage(0, 0), Coverage(0, 1))
    assert found.pools[D].pods == {}


def test_arrivals_are_a_rate_over_as_much_of_the_window_as_there_is(service: Service, router: Router) -> None:
    windows: list[float] = []
    for _ in range(8):
        service.round()
        windows.append(service.signals().load_window)
        router.arrivals.inc(6)
    assert windows == [0, 2, 4, 6, 8, LOAD_WINDOW, LOAD_WINDOW, LOAD_WINDOW]
    assert service.signals().arrivals == pytest.approx(3)


def test_routers_are_summed(service: Service, router: Router) -> None:
    other = service.pods[pod(R, "r2")] = Router()
    for _ in range(3):
        service.round()
        router.arrivals.inc(2)
        other.arrivals.inc(8)
        other.active.set(3)
        router.active.set(4)
        router.awaiting.labels("queue").set(1)
        other.awaiting.labels("queue").set(2)
        other.overdue.labels("decode").set(1)
        router.queued.set(5)
    service.round()
    found = service.signals()
    assert found.arrivals == pytest.approx(5)
    assert (found.active, found.queued) == (7, 5)
    assert (found.awaiting, found.overdue) == ({"queue": 3}, {"decode": 1})


def test_a_router_that_began_anew_is_counted_from_zero(service: Service, router: Router) -> None:
    router.arrivals.inc(100)
    router.ttft.observe(0.05)
    service.round()
    again = service.pods[pod(R, "r1")] = Router()
    again.arrivals.inc(6)
    again.ttft.observe(1.5)
    again.ttft.observe(1.5)
    service.round()
    found = service.signals()
    assert found.arrivals == pytest.approx(3)
    assert found.ttft
    assert (found.ttft.count, found.ttft.mean) == (2, 1.5)


def test_a_series_that_is_new_on_a_known_pod_counts_from_zero(service: Service, router: Router) -> None:
    service.round()
    router.results.labels(contract.SLO_MET).inc(3)
    service.round()
    assert service.signals().outcomes == Outcomes(met=3)


def test_a_pod_of_the_same_name_and_another_uid_begins_anew(service: Service, router: Router) -> None:
    router.arrivals.inc(10)
    service.round()
    del service.pods[pod(R, "r1")]
    new = service.pods[pod(R, "r1", uid="other")] = Router()
    new.arrivals.inc(50)
    service.round()
    assert service.signals().arrivals == 0
    new.arrivals.inc(8)
    service.round()
    assert service.signals().arrivals == pytest.approx(4)


def test_counts_of_a_deleted_pod_stay_in_the_window(service: Service, router: Router) -> None:
    staying = service.pods[pod(R, "r2")] = Router()
    service.round()
    router.arrivals.inc(8)
    router.results.labels(contract.SLO_FAILED).inc(1)
    staying.arrivals.inc(8)
    service.round()
    del service.pods[pod(R, "r1")]
    staying.arrivals.inc(16)
    service.round()
    found = service.signals()
    assert "r1" not in service.history.newest
    assert found.outcomes.failed == 1
    assert found.arrivals == pytest.approx((8 + 8 + 16) / 4)


# --- gaps, age, coverage -----------------------------------------------------------------------------------


def test_a_pod_that_was_missing_counts_once_over_the_gap_and_only_its_share_is_in_the_window(
    service: Service, router: Router
) -> None:
    service.round()
    service.silent.add(pod(R, "r1"))
    for _ in range(9):
        service.round()
    service.silent.clear()
    router.arrivals.inc(60)
    service.round()
    assert [(one.since, one.at) for one in service.history.increments if one.target.name == "r1"] == [(102, 122)]
    assert service.signals().load_window == LOAD_WINDOW
    assert service.signals().arrivals == pytest.approx(3)


def test_a_router_that_misses_a_round_does_not_look_as_if_it_had_less(service: Service, router: Router) -> None:
    other = service.pods[pod(R, "r2")] = Router()
    for _ in range(5):
        service.round()
        router.arrivals.inc(4)
        other.arrivals.inc(4)
    service.round()
    service.silent.add(pod(R, "r2"))
    router.arrivals.inc(4)
    service.round()
    assert service.signals().arrivals == pytest.approx(4)
    assert service.signals().routers == Coverage(2, 2)


def test_a_stale_scrape_is_not_used_and_not_covered(service: Service, router: Router) -> None:
    router.active.set(4)
    service.round()
    assert service.signals(later=FRESH).active == 4
    stale = service.signals(later=FRESH + 0.1)
    assert (stale.active, stale.routers, stale.pools[D].coverage) == (0, Coverage(0, 1), Coverage(0, 1))
    assert stale.pools[D].pods == {}
    assert stale.at == service.now


def test_a_broken_exposition_ages_like_a_missing_one(service: Service, router: Router) -> None:
    service.round()
    router.arrivals.inc(6)
    service.silent.add(pod(D, "d1"))
    for _ in range(6):
        service.round()
    found = service.signals()
    assert (found.routers, found.pools[D].coverage) == (Coverage(1, 1), Coverage(0, 1))


def test_an_older_scrape_changes_nothing(service: Service) -> None:
    service.round()
    before = service.history
    scrapes = {"r1": before.newest["r1"].scrape}
    after = before.fold(service.pods, scrapes, service.now + 1)
    assert (after.newest, after.increments) == (before.newest, ())


def test_a_pod_that_was_not_expected_is_not_covered_and_carries_no_load(service: Service) -> None:
    leaving = pod(D, "leaving")
    service.pods[leaving] = Engine()
    service.round()
    expected = [target for target in service.pods if target != leaving]
    found = signals(service.history, expected, (D,), 0.95, service.now)
    assert found.pools[D].coverage == Coverage(1, 1)
    assert set(found.pools[D].pods) == {"d1"}


def test_pools_are_those_of_the_service(service: Service) -> None:
    service.round()
    assert set(service.signals(pools=(D,)).pools) == {D}


def test_history_is_bounded(service: Service, router: Router) -> None:
    for _ in range(100):
        router.arrivals.inc()
        service.round()
    assert len(service.history.increments) <= 2 * SLO_WINDOW / 2


def test_an_idle_pod_keeps_nothing(service: Service) -> None:
    service.round()
    service.round()
    assert all(not one.counters and not one.histograms for one in service.history.increments)
