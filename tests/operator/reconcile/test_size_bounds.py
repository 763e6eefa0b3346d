"""A bound that the user changes moves a size at once, before the scaling loop has decided: what the status says."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from tests.operator.reconcile.fake_api import KEY, Api, Apply, Loop, one_pass

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation, SizeDecision

GPU: dict[str, Any] = {"accelerator": {}}


def replicas(low: int, high: int) -> dict[str, Any]:
    return {"replicas": {"min": low, "max": high}}


def says(worker: Worker, size: int, generation: int, reason: str = "DecodeLoad", sufficient: bool = True) -> None:
    decision = SizeDecision(size, reason, "so many streams", sufficient=sufficient)
    cast("Loop", worker.reconciler.recommender).says = Recommendation({"decode": decision}, generation=generation)


def decisions(api: Api) -> list[dict[str, Any]]:
    return api.objects["InferenceService", "chat"]["status"]["scaling"]["decisions"]


async def look(worker: Worker) -> None:
    worker.queue.add(KEY)
    assert await one_pass(worker)


async def running(worker: Worker, user_applies: Apply, size: int, **spec: Any) -> None:
    user_applies(decode={**replicas(1, 8), **spec})
    await one_pass(worker)
    says(worker, size, 1)
    await look(worker)


@pytest.mark.parametrize(
    ("size", "changed", "expected"),
    [
        (1, replicas(3, 8), (1, 3, "3 because decode.replicas.min is 3")),
        (4, replicas(1, 2), (4, 2, "2 because decode.replicas.max is 2: raise it")),
        (4, {**replicas(1, 8), **GPU}, (4, 2, "2 because the GPU budget of 2 is used up: raise scaling.gpuBudget")),
    ],
    ids=["min", "max", "budget"],
)
@pytest.mark.parametrize("held", [False, True], ids=["before the loop has decided", "while the loop holds"])
async def test_a_bound_that_moved_a_size_is_the_reason(
    held: bool,
    size: int,
    changed: dict[str, Any],
    expected: tuple[int, int, str],
    api: Api,
    worker: Worker,
    user_applies: Apply,
) -> None:
    gpu = "accelerator" in changed
    await running(worker, user_applies, size, **(GPU if gpu else {}))
    user_applies(generation=2, decode=changed, **({"scaling": {"gpuBudget": 2}} if gpu else {}))
    if held:
        says(worker, expected[1], 2, "NoRouter", sufficient=False)
    await one_pass(worker)
    newest = decisions(api)[0]
    assert (newest["from"], newest["to"], newest["message"]) == expected
    assert newest["reason"] == "Bounds"
    assert api.writes.count("Event Bounds") == 1
    await look(worker)
    assert decisions(api)[0] == newest, "reported once"


async def test_a_size_that_was_applied_just_before_a_restart_is_reported_after_it(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    await running(worker, user_applies, 1)
    before = copy.deepcopy(api.objects["InferenceService", "chat"]["status"])
    says(worker, 3, 1)
    await look(worker)
    live = api.objects["InferenceService", "chat"]
    live["status"] = before  # the operator ended before it wrote the new one
    live["metadata"]["resourceVersion"] = "1000"
    worker.reconciler.store.put(INFERENCE_SERVICE, copy.deepcopy(live))
    cast("Loop", worker.reconciler.recommender).says = NO_RECOMMENDATION
    await look(worker)
    assert [(d["from"], d["to"], d["reason"]) for d in decisions(api)] == [(1, 3, "Resumed")]


async def test_a_held_size_is_what_runs_now_and_not_what_ran_when_the_loop_decided(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    await running(worker, user_applies, 3)
    says(worker, 2, 1, "Unreadable", sufficient=False)
    await look(worker)
    assert api.objects["InferenceService", "chat"]["status"]["decode"]["desired"] == 3


async def test_a_pool_whose_deployments_were_deleted_is_made_again_as_large_as_it_was(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    await running(worker, user_applies, 3)
    for ref in [ref for ref in api.objects if ref[0] == "Deployment" and "decode" in ref[1]]:
        worker.reconciler.store.drop(DEPLOYMENT, api.objects.pop(ref))
    cast("Loop", worker.reconciler.recommender).says = NO_RECOMMENDATION
    known = decisions(api)
    await look(worker)
    made = [m for (kind, name), m in api.objects.items() if kind == "Deployment" and "decode" in name]
    assert [m["spec"]["replicas"] for m in made] == [3]
    assert decisions(api) == known
