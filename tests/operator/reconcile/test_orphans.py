"""Children that `kubectl delete --cascade=orphan` left: the next service of the name adopts or removes them."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.operator.conftest import minimal_spec
from tests.operator.reconcile.fake_api import KEY, Api, Apply, edit, engines, one_pass, set_available
from tests.operator.reconcile.live_objects import desired

from phasewise_operator.kinds import DISRUPTION_BUDGET, INFERENCE_SERVICE, Manifest
from phasewise_operator.reconcile.worker import Worker
from phasewise_runtime import contract

Replace = Callable[[dict[str, Any], dict[str, Any]], Awaitable[None]]
NEW = "vllm/vllm-openai:v0.33.0"


@pytest.fixture
def user_replaces(api: Api, worker: Worker, user_applies: Apply) -> Replace:
    """A service is deleted with `--cascade=orphan` while its engines serve, and another of its name is applied."""

    async def replace(before: dict[str, Any], after: dict[str, Any]) -> None:
        user_applies(**minimal_spec(**before))
        await one_pass(worker)
        for deployment in engines(api):
            set_available(api, worker, deployment)
        worker.reconciler.store.drop(INFERENCE_SERVICE, api.objects.pop(("InferenceService", "chat")))
        for live in api.objects.values():
            edit(api, worker, live, lambda meta: meta.pop("ownerReferences"))
        user_applies(uid="uid-2", **minimal_spec(**after))
        await one_pass(worker)

    return replace


def owners(live: Manifest) -> list[str]:
    return [owner["uid"] for owner in live["metadata"].get("ownerReferences", [])]


async def test_the_old_revision_serves_until_the_new_one_does_and_then_goes(
    api: Api, worker: Worker, user_replaces: Replace
) -> None:
    """Else both would be there for ever, under one name."""
    pools = {role: {"replicas": {"min": 2}} for role in contract.ENGINE_ROLES}
    await user_replaces(pools, {**pools, "engine": {"image": NEW}})
    old = {m["metadata"]["name"] for m in engines(api) if desired(m) is None}
    assert [m["spec"]["replicas"] for m in engines(api) if m["metadata"]["name"] in old] == [2, 2]
    children = [m for m in api.objects.values() if m["kind"] != "InferenceService"]
    assert all(owners(m) == ["uid-2"] for m in children)
    for _ in range(4):
        for live in engines(api):
            set_available(api, worker, live)
        worker.queue.add(KEY)
        await one_pass(worker)
    assert [m["spec"]["replicas"] for m in engines(api)] == [2, 2]
    assert not {m["metadata"]["name"] for m in engines(api)} & old


async def test_the_same_spec_takes_over_all_there_is_and_restarts_nothing(api: Api, user_replaces: Replace) -> None:
    await user_replaces({}, {})
    assert len(engines(api)) == 2
    assert not [write for write in api.writes if write.startswith("delete")]


async def test_the_old_revision_holds_its_part_of_the_gpu_budget(api: Api, user_replaces: Replace) -> None:
    pool = {"accelerator": {"resource": "nvidia.com/gpu"}}
    spec = {"prefill": pool, "decode": pool, "scaling": {"gpuBudget": 3}}
    await user_replaces(spec, {**spec, "engine": {"image": NEW}})
    assert sorted(m["spec"]["replicas"] for m in engines(api)) == [0, 0, 1, 1]


async def test_what_the_new_spec_has_no_use_for_is_removed(api: Api, user_replaces: Replace) -> None:
    external = {"scaling": {"mode": "External"}}
    await user_replaces(external, {**external, "prefill": None})
    for kind in ("PoolScaler", "PodDisruptionBudget"):
        assert (kind, "chat-prefill") not in api.objects
        assert owners(api.objects[kind, "chat-decode"]) == ["uid-2"]


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.update(managedFields=[]),
        lambda meta: meta.update(ownerReferences=[{"controller": True, "uid": "uid-of-another"}]),
    ],
    ids=["not applied by us", "another's"],
)
async def test_what_we_did_not_apply_or_another_owns_is_left_alone(
    api: Api, worker: Worker, user_applies: Apply, change: Any
) -> None:
    user_applies()
    await one_pass(worker)
    other = copy.deepcopy(api.objects["PodDisruptionBudget", "chat-decode"])
    other["metadata"].update(name="chat-other", uid="uid-other")
    api.objects["PodDisruptionBudget", "chat-other"] = other
    edit(api, worker, other, lambda meta: (meta.pop("ownerReferences"), change(meta)))
    worker.queue.add(KEY)
    await one_pass(worker)
    assert (DISRUPTION_BUDGET.name, "chat-other") in api.objects
