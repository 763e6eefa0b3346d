"""What is known of a service after its rounds: load by pod, outcomes, TTFT by phase."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.operator.scaling.signals.exposition import Engine, Router
from tests.operator.scaling.signals.service import D, P, R, Service, pod

from phasewise_operator.scaling.signals import families
from phasewise_operator.scaling.signals.build import signals
from phasewise_operator.scaling.signals.exposition import ParsedMetrics
from phasewise_operator.scaling.signals.history import SLO_WINDOW, History, Scrape
from phasewise_operator.scaling.types import Outcomes, PodLoad, TtftParts
from phasewise_runtime import contract

# --- pods --------------------------------------------------------------------------------------------------


def test_the_load_of_a_pod_is_what_all_routers_saw_of_it(service: Service, router: Router) -> None:
    other = service.pods[pod(R, "r2")] = Router()
    service.round()
    for one, requests, inflight, busy in ((router, 3, 6.0, 1.0), (other, 2, 2.0, 1.5)):
        one.requests.labels(D, "d1").inc(requests)
        one.inflight.labels(D, "d1").inc(inflight)
        one.busy.labels(D, "d1").inc(busy)
    service.round()
    load = service.signals().pools[D].pods["d1"]
    assert load.requests == 5
    assert load.concurrency == pytest.approx(4)
    assert load.busy == pytest.approx(1 - 0.5 * 0.25)


def test_busy_is_never_more_than_all_of_the_time(service: Service, router: Router) -> None:
    service.round()
    router.busy.labels(D, "d1").inc(2.1)
    service.round()
    assert service.signals().pools[D].pods["d1"].busy == 1


def test_a_pod_that_no_router_speaks_of_has_no_load(service: Service) -> None:
    service.round()
    service.round()
    load = service.signals().pools[D].pods["d1"]
    assert (load.concurrency, load.busy, load.requests) == (0, 0, 0)


def test_load_reported_by_an_engine(service: Service) -> None:
    engine = service.pods[pod(D, "d1")] = Engine(running=3, waiting=2, blocked=1, kv=0.25)
    assert isinstance(engine, Engine)
    engine.observe(families.ITL, 9.0)
    service.round()
    engine.tokens = 40
    engine.observe(families.ITL, 0.02, 0.04)
    service.round()
    load = service.signals().pools[D].pods["d1"]
    assert load.itl == pytest.approx(0.03)
    assert replace(load, itl=None) == PodLoad(0, 0, 0, 3, 2, 1, 0.25, tokens=40)


def test_load_that_an_engine_does_not_report_is_unknown(service: Service) -> None:
    service.pods[pod(D, "d1")] = Engine(running=math.nan)
    service.round()
    load = service.signals().pools[D].pods["d1"]
    assert (load.running, load.waiting, load.blocked, load.kv_usage, load.itl) == (None, None, None, None, None)


def test_engines_of_one_pod_are_summed_and_their_caches_averaged() -> None:
    ranks = [(("engine", "0"),), (("engine", "1"),)]
    gauges = {
        families.RUNNING: dict(zip(ranks, (2, 3), strict=True)),
        families.KV_USAGE: dict(zip(ranks, (0.2, 0.6), strict=True)),
    }
    target = pod(D, "d1")
    history = History().fold([target], {"d1": Scrape(0, ParsedMetrics(gauges, {}, {}))}, 0)
    load = signals(history, [target], (D,), 0.95, 0).pools[D].pods["d1"]
    assert (load.running, load.kv_usage) == (5, pytest.approx(0.4))


# --- outcomes and latency ----------------------------------------------------------------------------------


def test_outcomes_are_those_of_the_slo_window(service: Service, router: Router) -> None:
    service.round()
    for count, result in enumerate(contract.SLO_RESULTS, start=1):
        router.results.labels(result).inc(count)
    service.round()
    assert service.signals().outcomes == Outcomes(met=1, ttft_missed=2, itl_missed=3, both_missed=4, failed=5)
    for _ in range(int(SLO_WINDOW / 2)):
        service.round()
    assert service.signals().outcomes == Outcomes()
    assert service.signals().slo_window == SLO_WINDOW


def test_latency_is_of_all_routers_together(service: Service, router: Router) -> None:
    other = service.pods[pod(R, "r2")] = Router()
    service.round()
    for _ in range(9):
        router.ttft.observe(0.3)
    other.ttft.observe(1.5)
    other.itl.observe(0.05)
    service.round()
    found = service.signals(attainment=0.9)
    assert found.ttft
    assert (found.ttft.count, found.ttft.at_attainment) == (10, 0.5)
    assert (found.ttft.mean, found.ttft.p50, found.ttft.p95) == pytest.approx((0.42, 0.1 + 0.4 * 5 / 9, 1.5))
    assert found.itl
    assert found.itl.count == 1


def test_ttft_in_its_parts(service: Service, router: Router) -> None:
    prefill, decode = Engine(), Engine()
    service.pods |= {pod(P, "p1"): prefill, pod(D, "d1"): decode}
    service.round()
    router.phase.labels("queue").observe(0.25)
    router.phase.labels("prefill").observe(9)
    prefill.observe(families.QUEUE_TIME, 1.0, 3.0)
    prefill.observe(families.PREFILL_TIME, 0.5)
    decode.observe(families.QUEUE_TIME, 0.75)
    decode.observe(families.TRANSFER_TIME, 0.25)
    decode.observe(families.PREFILL_TIME, 0.125)
    service.round()
    assert service.signals().parts == TtftParts(0.25, 2.0, 0.5, 0.25, 0.5, 0.125)


@pytest.mark.parametrize(("transfer", "admission"), [((), 0.5), ((0.2,), pytest.approx(0.3)), ((0.75,), 0.0)])
def test_admission_is_decodes_queue_less_the_transfer(
    service: Service, transfer: tuple[float, ...], admission: float
) -> None:
    decode = service.pods[pod(D, "d1")] = Engine()
    assert isinstance(decode, Engine)
    service.round()
    decode.observe(families.QUEUE_TIME, 0.5)
    if transfer:
        decode.observe(families.TRANSFER_TIME, *transfer)
    service.round()
    assert service.signals().parts == TtftParts(transfer=transfer[0] if transfer else None, admission=admission)
