"""A service whose children cannot be written, or whose spec changes meanwhile: it comes back in time, for little."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.lease_server import Clock
from tests.operator.reconcile.fake_api import KEY, Api, Apply, Loop, condition, one_pass

from phasewise_operator.kinds import INFERENCE_SERVICE, POOL_SCALER, SERVICE, Kind, Manifest
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.reconcile.contention import APPLIES, FIRST_PAUSE, Contention
from phasewise_operator.reconcile.failures import LONGEST_SECONDS, Retries
from phasewise_operator.reconcile.reconciler import PENDING_SECONDS
from phasewise_operator.reconcile.worker import Worker
from phasewise_runtime import contract


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(worker: Worker, clock: Clock) -> Worker:
    """Its retries and its damper go by `clock`."""
    timed = replace(worker.reconciler, retries=Retries(clock), contention=Contention(clock))
    return replace(worker, reconciler=timed)


async def test_what_waits_for_the_garbage_collector_is_not_contended(
    api: Api, timed: Worker, user_applies: Apply, clock: Clock
) -> None:
    user_applies()
    await one_pass(timed)
    timed.reconciler.store.drop(INFERENCE_SERVICE, api.objects.pop(("InferenceService", "chat")))
    user_applies(uid="uid-2")
    for _ in range(3 * APPLIES):
        await timed.reconciler.reconcile(KEY)
        clock.now += 2.1
    assert condition(api, "Stalled") == ("False", "Progressing")
    for ref in [ref for ref in api.objects if ref[0] != "InferenceService"]:
        del api.objects[ref]
    assert (await timed.reconciler.reconcile(KEY)).complete


async def test_a_child_that_is_refused_is_not_contended(
    api: Api, timed: Worker, user_applies: Apply, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phasewise_operator.reconcile.failures.LONGEST_SECONDS", 2.0)
    api.faults["Service"] = KubeError(500, "InternalError", "etcd is slow")
    user_applies()
    for _ in range(3 * APPLIES):
        await timed.reconciler.reconcile(KEY)
        clock.now += 2.1
    assert condition(api, "Stalled")[0] == "False"


async def test_a_contended_child_that_failed_before_brings_no_hot_loop(
    api: Api, timed: Worker, user_applies: Apply, clock: Clock
) -> None:
    user_applies()
    await timed.reconciler.reconcile(KEY)

    async def overwritten() -> float | None:
        api.objects["Service", "chat"]["metadata"]["managedFields"] = [{"manager": "argocd", "operation": "Update"}]
        timed.reconciler.store.put(SERVICE, copy.deepcopy(api.objects["Service", "chat"]))
        return (await timed.reconciler.reconcile(KEY)).requeue_after

    for _ in range(APPLIES - 2):
        await overwritten()
    api.faults["Service"] = KubeError(500, "InternalError", "etcd is slow")
    await overwritten()
    del api.faults["Service"]
    clock.now += 1
    await overwritten()
    pause = await overwritten()
    assert condition(api, "Stalled") == ("True", "Contended")
    assert pause == PENDING_SECONDS, "it is looked at while it is left alone: neither at once nor in minutes"
    clock.now += FIRST_PAUSE
    assert (await timed.reconciler.reconcile(KEY)).complete


async def test_a_spec_that_is_mended_while_a_child_is_repaired_is_planned_anew(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    """The watch's event of it is no news any more: the pass itself has found it."""
    user_applies()
    await one_pass(worker)
    worker.reconciler.store.drop(SERVICE, api.objects.pop(("Service", "chat")))
    user_applies(generation=2, engine={"args": {"host": "::"}})
    mended = api.objects["InferenceService", "chat"]
    mended["metadata"].update(generation=3, resourceVersion="99")
    mended["spec"]["engine"] = {}
    await one_pass(worker)
    assert not worker.reconciler.store.put(INFERENCE_SERVICE, copy.deepcopy(mended))
    assert worker.reconciler.recommender.changed == [KEY] if isinstance(worker.reconciler.recommender, Loop) else False
    await one_pass(worker)
    assert ("Service", "chat") in api.objects
    assert condition(api, "Stalled")[0] == "False"


async def test_nothing_is_asked_of_the_api_server_while_a_child_waits_for_its_next_try(
    api: Api, timed: Worker, user_applies: Apply, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.faults["Deployment"] = KubeError(403, "Forbidden", "exceeded quota")
    user_applies()
    await timed.reconciler.reconcile(KEY)
    asked: list[str] = []
    get = api.get

    async def counted(kind: Kind, namespace: str, name: str) -> Manifest | None:
        asked.append(kind.name)
        return await get(kind, namespace, name)

    monkeypatch.setattr(api, "get", counted)
    result = await timed.reconciler.reconcile(KEY)
    assert (asked, result.complete) == ([], False)
    assert condition(api, "Stalled") == ("True", "ApplyRefused")
    clock.now += LONGEST_SECONDS
    await timed.reconciler.reconcile(KEY)
    assert "InferenceService" in asked


def managers(live: Manifest) -> list[str]:
    return [entry["operation"] for entry in live["metadata"].get("managedFields", [])]


@pytest.mark.parametrize("crashes", [False, True], ids=["in one go", "after a crash between the two writes"])
async def test_a_pool_scaler_is_made_with_what_never_changes_and_then_applied(
    crashes: bool, api: Api, timed: Worker, user_applies: Apply, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is created belongs to its creator for ever, and could not be dropped later."""
    made: list[Manifest] = []
    create, apply = api.create, api.apply

    async def recorded(kind: Kind, namespace: str, body: Manifest) -> Manifest:
        made.extend([copy.deepcopy(body)] if kind is POOL_SCALER else [])
        return await create(kind, namespace, body)

    async def refuse_first(manifest: Manifest, subresource: str | None = None) -> Any:
        if crashes and manifest["kind"] == "PoolScaler" and clock.now < 2000:
            raise KubeError(0, "ClientError", "no answer")
        return await apply(manifest, subresource)

    monkeypatch.setattr(api, "create", recorded)
    monkeypatch.setattr(api, "apply", refuse_first)
    user_applies(scaling={"mode": "External"}, decode={"replicas": {"min": 2, "max": 4}})
    await timed.reconciler.reconcile(KEY)
    clock.now = 3000.0
    await timed.reconciler.reconcile(KEY)
    (body,) = made
    assert set(body["metadata"]) == {"name", "namespace", "labels", "ownerReferences"}
    assert body["metadata"]["labels"] == {contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    live = api.objects["PoolScaler", "chat-decode"]
    assert live["spec"]["replicas"] == 2
    assert live["metadata"]["labels"][contract.LABEL_SERVICE] == "chat"
    assert managers(live) == ["Apply"]
    api.writes.clear()
    await timed.reconciler.reconcile(KEY)
    assert not [w for w in api.writes if w.startswith("PoolScaler") and not w.endswith("status")]
