"""Passes over a service whose nodes are drained: what may be evicted, and which pod goes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.conftest import MakeContext, minimal_spec
from tests.operator.reconcile.fake_api import KEY, Api, Apply, edit, engines, one_pass, set_available
from tests.operator.reconcile.live_objects import observed

from phasewise_operator.kinds import NODE, POD, Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.plan import Plan, make_plan
from phasewise_operator.reconcile.worker import Worker
from phasewise_runtime import contract

CORDONED = {"metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": "1"}}


def most_evicted(plan: Plan) -> dict[str, int]:
    budgets = [m for m in plan.desired if m["kind"] == "PodDisruptionBudget"]
    return {m["metadata"]["labels"][contract.LABEL_ROLE]: m["spec"]["maxUnavailable"] for m in budgets}


@pytest.mark.parametrize(
    ("known", "changes", "decode"),
    [
        (True, {}, 0),
        (False, {}, 1),
        (True, {"rollout": {"allowDowntime": True}}, 1),
        (True, {"decode": {"replicas": {"min": 2}}}, 1),
        (True, {"decode": {"replicas": {"min": 0}}, "prefill": {"replicas": {"min": 0}}}, 1),
    ],
    ids=["a pool of one", "nodes cannot be read", "downtime is allowed", "a pool of two", "at zero"],
)
def test_of_a_pool_of_one_nothing_is_evicted_where_a_successor_comes(
    known: bool, changes: dict[str, Any], decode: int, make_context: MakeContext
) -> None:
    plan = make_plan(make_context(scaling={"mode": "Manual"}, **changes), Observed(drains_known=known))
    assert (most_evicted(plan)["decode"], most_evicted(plan)["router"]) == (decode, 1)


def test_in_a_rollout_pods_of_both_revisions_count_so_one_may_be_evicted(make_context: MakeContext) -> None:
    before = observed(make_plan(make_context(), Observed()), ready=1)
    both = observed(make_plan(make_context(engine={"image": "vllm/vllm-openai:v9"}), before), ready=1)
    seen = Observed(both.children, both.pods, drains_known=True)
    assert most_evicted(make_plan(make_context(), seen))["decode"] == 1


@pytest.mark.parametrize("failed", [False, True], ids=["blocked", "failed"])
def test_a_rollout_that_waits_for_somebody_leaves_the_only_pod_guarded(failed: bool, make_context: MakeContext) -> None:
    before = observed(make_plan(make_context(), Observed()), ready=1)
    plan = make_plan(make_context(engine={"image": "vllm/vllm-openai:v9"}), before)
    new = {e.revision for e in plan.engines}
    for made in plan.desired:
        if failed and made["metadata"].get("labels", {}).get(contract.LABEL_REVISION) in new:
            mark = f"2026-01-01T00:00:00Z KVTransferFails {plan.revision} no KV"
            made["metadata"]["annotations"][contract.ANNOTATION_FAILED] = mark
    both = observed(plan, ready=1)
    for live in both.children.values():
        if live["metadata"].get("labels", {}).get(contract.LABEL_REVISION) in new:
            live["spec"]["replicas"] = int(failed)
            live["status"] = {}
    seen = Observed(both.children, both.pods, drains_known=True)
    found = make_plan(make_context(engine={"image": "vllm/vllm-openai:v9"}), seen)
    assert (found.failed is not None) is failed
    assert most_evicted(found)["decode"] == 0


def put_pod(api: Api, worker: Worker, deployment: Manifest, node: str) -> Manifest:
    labels = {**deployment["spec"]["template"]["metadata"]["labels"]}
    name = f"{deployment['metadata']['name']}-{node}"
    live: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    api.objects["Pod", name] = live
    edit(api, worker, live)
    return live


async def test_the_pod_on_a_drained_node_goes_when_its_successor_is_ready(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    store = worker.reconciler.store
    store.nodes.set_read(NODE, None)
    user_applies(**minimal_spec(scaling={"mode": "Manual"}))
    await one_pass(worker)
    for deployment in engines(api):
        set_available(api, worker, deployment)
        put_pod(api, worker, deployment, "n0")
    decode = next(m for m in engines(api) if m["metadata"]["labels"][contract.LABEL_ROLE] == contract.DECODE)
    store.drop(POD, api.objects.pop(("Pod", f"{decode['metadata']['name']}-n0")))
    leaving = put_pod(api, worker, decode, "n1")
    worker.queue.add(KEY)
    await one_pass(worker)

    assert store.nodes.put(NODE, CORDONED) == {KEY}
    worker.queue.add(KEY)
    await one_pass(worker)
    assert [m["spec"]["replicas"] for m in engines(api)] == [2, 1], "decode, prefill"
    for deployment in engines(api):
        set_available(api, worker, deployment)
    put_pod(api, worker, decode, "n2")
    worker.queue.add(KEY)
    await one_pass(worker)
    assert [m["spec"]["replicas"] for m in engines(api)] == [1, 1]
    cost = api.objects["Pod", leaving["metadata"]["name"]]["metadata"]["annotations"]
    assert cost == {contract.ANNOTATION_DELETION_COST: "-1"}
    wrote = [write for write in api.writes if write.startswith(("Pod ", "Deployment chat-decode"))]
    assert [write.split()[0] for write in wrote[-2:]] == ["Pod", "Deployment"], "else the younger pod would go"
