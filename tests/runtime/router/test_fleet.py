"""The fleet's book-keeping: trials one at a time, pods that come back, gauges that go with their pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise_runtime.router.fleet import Fleet
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pods import Pod

POD = Pod("u0", "d0", "decode", "10.0.0.1", "fp", ready=True)


def fleet_with_an_excluded_pod() -> tuple[Fleet, Metrics]:
    metrics = Metrics()
    fleet = Fleet(metrics, lambda: 100.0)
    fleet.replace_all([POD])
    fleet.report_failure(POD, "connect", hard=True)
    assert not fleet.can_serve()
    return fleet, metrics


async def test_a_pod_on_trial_takes_one_request_at_a_time() -> None:
    fleet, _ = fleet_with_an_excluded_pod()
    fleet.report_probe(POD, ok=True)
    with fleet.reserve(POD):
        assert not fleet.can_serve()
    assert fleet.can_serve(), "the trial ended without a verdict: the next request is one"
    with fleet.reserve(POD):
        fleet.report_success(POD)
        assert fleet.can_serve()


async def test_a_trial_is_over_with_its_verdict_and_not_with_its_request() -> None:
    fleet, _ = fleet_with_an_excluded_pod()
    fleet.report_probe(POD, ok=True)
    with fleet.reserve(POD):
        fleet.report_success(POD)
        fleet.report_failure(POD, "connect", hard=True)
        fleet.report_probe(POD, ok=True)
        assert fleet.can_serve(), "the first trial streams on, the second is free"
        second = fleet.reserve(POD)
        second.__enter__()
    assert not fleet.can_serve(), "the end of the first does not end the second"
    second.__exit__(None, None, None)
    assert fleet.can_serve()


@pytest.mark.parametrize(
    ("role", "beside", "excluded"),
    [
        ("decode", [], False),
        ("decode", [replace(POD, uid="u1")], True),
        ("decode", [replace(POD, uid="u1", ready=False)], False),
        ("decode", [replace(POD, uid="u1", role="prefill")], False),
        ("prefill", [], True),  # decode works alone
    ],
)
async def test_soft_failures_do_not_exclude_the_last_decode_pod(role: str, beside: list[Pod], excluded: bool) -> None:
    fleet, pod = Fleet(Metrics(), lambda: 0.0), replace(POD, role=role)
    fleet.replace_all([pod, *beside])
    for _ in range(9):
        fleet.report_failure(pod, "status_500", hard=False)
    assert {c.pod.uid: c.ejected for c in fleet.candidates(role)}["u0"] == excluded
    fleet.report_failure(pod, "connect", hard=True)
    assert {c.pod.uid: c.ejected for c in fleet.candidates(role)}["u0"], "no mercy where nobody answers"


async def test_a_pod_that_becomes_ready_again_need_not_wait_for_a_probe() -> None:
    fleet, _ = fleet_with_an_excluded_pod()
    fleet.put(replace(POD, ready=False))
    fleet.put(POD)
    assert fleet.can_serve()


async def test_the_gauge_of_a_pod_goes_when_its_last_leg_ends() -> None:
    metrics = Metrics()
    fleet = Fleet(metrics, lambda: 0.0)
    fleet.replace_all([POD])
    labels = {"role": "decode", "pod": "d0"}
    with fleet.reserve(POD), fleet.leg(POD):
        fleet.remove(POD.uid)
        assert metrics.registry.get_sample_value("phasewise_router_pod_inflight_requests", labels) == 1
    assert metrics.registry.get_sample_value("phasewise_router_pod_inflight_requests", labels) is None
    fleet.report_failure(POD, "late", hard=True)  # of a pod that is no longer known: nothing happens
    assert fleet.candidates("decode") == []


async def test_what_is_counted_by_pod_goes_with_the_pod() -> None:
    """Pools that breathe have many pods in a router's life."""
    fleet, metrics = fleet_with_an_excluded_pod()
    metrics.kv_transfer_ok.labels(POD.name).set(1)
    fleet.remove(POD.uid)
    named = {s.name for m in metrics.registry.collect() for s in m.samples if s.labels.get("pod") == POD.name}
    assert named == set()


async def test_a_pod_of_the_same_name_keeps_its_series() -> None:
    fleet, metrics = fleet_with_an_excluded_pod()
    fleet.put(replace(POD, uid="u1"))
    fleet.remove(POD.uid)
    named = {s.name for m in metrics.registry.collect() for s in m.samples if s.labels.get("pod") == POD.name}
    assert "phasewise_router_ejections_total" in named
