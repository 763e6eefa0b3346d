"""Sizes on their way to the cluster: scalers for autoscalers, the loop's decisions, and what is said of them."""

from __future__ import annotations

import copy
from typing import cast

from tests.operator.reconcile.fake_api import KEY, Api, Apply, Loop, condition, one_pass

from phasewise_operator.kinds import POOL_SCALER
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.scaling.types import Recommendation, SizeDecision
from phasewise_runtime import contract


async def test_scalers_are_created_with_replicas_and_their_status_has_the_pods_and_their_selector(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies(scaling={"mode": "External"}, decode={"replicas": {"min": 2, "max": 5}})
    assert await one_pass(worker)
    assert "PoolScaler chat-decode made" in api.writes
    assert api.objects["PoolScaler", "chat-decode"]["spec"]["replicas"] == 2
    worker.queue.add(KEY)
    assert await one_pass(worker)
    status = api.objects["PoolScaler", "chat-decode"]["status"]
    assert status["replicas"] == 0, "no pod yet"
    assert status["selector"] == "phasewise.dev/service=chat,phasewise.dev/role=decode"
    api.writes.clear()
    worker.queue.add(KEY)
    assert await one_pass(worker)
    assert api.writes == []


async def test_a_scaler_of_somebody_else_is_left_alone(api: Api, worker: Worker, user_applies: Apply) -> None:
    meta = {"name": "chat-decode", "namespace": "default"}
    theirs = {"apiVersion": POOL_SCALER.api_version, "kind": "PoolScaler", "metadata": meta, "spec": {"replicas": 9}}
    api.objects["PoolScaler", "chat-decode"] = copy.deepcopy(theirs)
    user_applies(scaling={"mode": "External"})
    await one_pass(worker)
    assert api.objects["PoolScaler", "chat-decode"] == theirs
    assert condition(api, "Stalled") == ("True", "NameConflict")


async def test_a_scaler_that_lost_its_label_is_applied_again_without_replicas_which_are_the_autoscalers(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies(scaling={"mode": "External"}, decode={"replicas": {"min": 1, "max": 5}})
    await one_pass(worker)
    worker.queue.add(KEY)
    await one_pass(worker)
    live = api.objects["PoolScaler", "chat-decode"]
    live["spec"]["replicas"] = 4
    live["metadata"]["resourceVersion"] = "1000"
    lost = copy.deepcopy(live)
    worker.reconciler.store.drop(POOL_SCALER, lost)
    del live["metadata"]["labels"][contract.LABEL_SERVICE]
    worker.queue.add(KEY)
    assert await one_pass(worker)
    after = api.objects["PoolScaler", "chat-decode"]
    assert after["metadata"]["labels"][contract.LABEL_SERVICE] == "chat"
    assert after["spec"]["replicas"] == 4, "the autoscaler's"
    sent = [m for m in api.applied if m["kind"] == "PoolScaler" and m["metadata"]["name"] == "chat-decode"]
    assert all("replicas" not in m.get("spec", {}) for m in sent)


async def test_the_loops_sizes_are_applied_and_reported(api: Api, worker: Worker, user_applies: Apply) -> None:
    user_applies(decode={"replicas": {"min": 1, "max": 5}})
    await one_pass(worker)
    cast("Loop", worker.reconciler.recommender).says = Recommendation(
        {"decode": SizeDecision(3, "DecodeLoad", "9 streams")}, generation=1
    )
    worker.queue.add(KEY)
    assert await one_pass(worker)
    (name,) = [name for kind, name in api.objects if kind == "Deployment" and "decode" in name]
    assert api.objects["Deployment", name]["spec"]["replicas"] == 3
    (decision,) = api.objects["InferenceService", "chat"]["status"]["scaling"]["decisions"]
    assert (decision["from"], decision["to"], decision["reason"]) == (1, 3, "DecodeLoad")
    assert api.writes[-1] == "Event DecodeLoad"
