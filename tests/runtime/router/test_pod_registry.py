"""The pod registry: half-open pods, ejection, pods that come back, series that go with their pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import Pod

POD = Pod("u0", "d0", "decode", "10.0.0.1", "fp", ready=True)


def registry_with_an_ejected_pod() -> tuple[PodRegistry, Metrics]:
    metrics = Metrics()
    pod_registry = PodRegistry(metrics, lambda: 100.0)
    pod_registry.replace_all([POD])
    pod_registry.report_failure(POD, "connect", hard=True)
    assert not pod_registry.can_serve()
    return pod_registry, metrics


async def test_a_half_open_pod_takes_one_request_at_a_time() -> None:
    pod_registry, _ = registry_with_an_ejected_pod()
    pod_registry.report_probe(POD, ok=True)
    with pod_registry.reserve(POD):
        assert not pod_registry.can_serve()
    assert pod_registry.can_serve(), "the request ended without a result: the next one is let through"
    with pod_registry.reserve(POD):
        pod_registry.report_success(POD)
        assert pod_registry.can_serve()


async def test_half_open_ends_with_the_result_and_not_with_the_end_of_its_request() -> None:
    pod_registry, _ = registry_with_an_ejected_pod()
    pod_registry.report_probe(POD, ok=True)
    with pod_registry.reserve(POD):
        pod_registry.report_success(POD)
        pod_registry.report_failure(POD, "connect", hard=True)
        pod_registry.report_probe(POD, ok=True)
        assert pod_registry.can_serve(), "the first half-open request streams on, the second may come"
        second = pod_registry.reserve(POD)
        second.__enter__()
    assert not pod_registry.can_serve(), "the end of the first does not end the second"
    second.__exit__(None, None, None)
    assert pod_registry.can_serve()


@pytest.mark.parametrize(
    ("role", "beside", "ejected"),
    [
        ("decode", [], False),
        ("decode", [replace(POD, uid="u1")], True),
        ("decode", [replace(POD, uid="u1", ready=False)], False),
        ("decode", [replace(POD, uid="u1", role="prefill")], False),
        ("prefill", [], True),  # decode pods can do both phases
    ],
)
async def test_soft_failures_do_not_eject_the_last_decode_pod(role: str, beside: list[Pod], ejected: bool) -> None:
    pod_registry, pod = PodRegistry(Metrics(), lambda: 0.0), replace(POD, role=role)
    pod_registry.replace_all([pod, *beside])
    for _ in range(9):
        pod_registry.report_failure(pod, "status_500", hard=False)
    assert {c.pod.uid: c.ejected for c in pod_registry.candidates(role)}["u0"] == ejected
    pod_registry.report_failure(pod, "connect", hard=True)
    assert {c.pod.uid: c.ejected for c in pod_registry.candidates(role)}["u0"], "unreachable: ejected"


async def test_a_pod_that_becomes_ready_again_need_not_wait_for_a_probe() -> None:
    pod_registry, _ = registry_with_an_ejected_pod()
    pod_registry.put(replace(POD, ready=False))
    pod_registry.put(POD)
    assert pod_registry.can_serve()


async def test_a_late_failure_of_a_removed_pod_changes_nothing() -> None:
    pod_registry = PodRegistry(Metrics(), lambda: 0.0)
    pod_registry.replace_all([POD])
    pod_registry.remove(POD.uid)
    pod_registry.report_failure(POD, "late", hard=True)
    assert pod_registry.candidates("decode") == []


async def test_series_by_pod_go_with_the_pod() -> None:
    """A pool that scales up and down has many pods in a router's life."""
    pod_registry, metrics = registry_with_an_ejected_pod()
    pod_registry.kv.report_warm(POD, 1.0, answered=True)
    pod_registry.remove(POD.uid)
    named = {s.name for m in metrics.registry.collect() for s in m.samples if s.labels.get("pod") == POD.name}
    assert named == set()


async def test_a_pod_of_the_same_name_keeps_its_series() -> None:
    pod_registry, metrics = registry_with_an_ejected_pod()
    pod_registry.put(replace(POD, uid="u1"))
    pod_registry.remove(POD.uid)
    named = {s.name for m in metrics.registry.collect() for s in m.samples if s.labels.get("pod") == POD.name}
    assert "phasewise_router_ejections_total" in named


async def test_results_by_revision_go_with_its_last_pod() -> None:
    pod_registry, metrics = PodRegistry(m := Metrics(), lambda: 0.0), m
    first, second = (replace(POD, uid=uid, name=uid, revision="r1") for uid in ("u0", "u1"))
    pod_registry.replace_all([first, second])
    pod_registry.report_result(first, "met")

    def series() -> list[tuple[str, float]]:
        found = [s for m in metrics.registry.collect() for s in m.samples if "revision" in s.labels]
        return [(s.labels["revision"], s.value) for s in found if s.name.endswith("_total")]

    pod_registry.remove(first.uid)
    assert series() == [("r1", 1)]
    pod_registry.remove(second.uid)
    assert series() == []
    pod_registry.report_result(second, "met")
    assert series() == [], "a request that ends later does not bring them back"
