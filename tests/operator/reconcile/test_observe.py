"""What a pass sees: which pods' Events are read, and that what they say ends in the conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from tests.operator.reconcile.fake_api import KEY, Api, Apply, condition, one_pass

from phasewise_operator.kinds import POD, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.observed import PodEvent
from phasewise_operator.reconcile.observe import AGAIN_SECONDS, CREATING_SECONDS, PODS_A_ROLE, Observer
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.store import Store
from phasewise_runtime import contract

FAILED_MOUNT: Manifest = {
    "reason": "FailedMount",
    "note": 'MountVolume.SetUp failed: secret "hf" not found',
    "deprecatedFirstTimestamp": "2026-01-02T03:00:00Z",
    "deprecatedLastTimestamp": "2026-01-02T03:04:00Z",
}


def pod(waiting: str, role: str = "decode", revision: str = "r", **meta: Any) -> Manifest:
    labels = {contract.LABEL_SERVICE: "chat", contract.LABEL_ROLE: role, contract.LABEL_REVISION: revision}
    return {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "uid-p",
            "resourceVersion": "1",
            "labels": labels,
            **meta,
        },
        "spec": {"nodeName": "n"},
        "status": {"containerStatuses": [{"state": {"waiting": {"reason": waiting}}}]},
    }


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def seen(api: Api, live: Manifest) -> tuple[PodEvent, ...]:
    """Of a pod that has been in its state for a while; empty, too, where it does not count any more."""
    store, clock = Store(), Clock()
    store.put(POD, live)
    observer = Observer(clock)
    await observer.observe(store, cast("Kube", api), KEY, "uid-s")
    clock.now += CREATING_SECONDS
    pods = (await observer.observe(store, cast("Kube", api), KEY, "uid-s")).pods
    return pods[0].events if pods else ()


async def test_events_are_read_of_a_few_pods_a_role_after_a_while_and_now_and_then(api: Api) -> None:
    store, clock, kube = Store(), Clock(), cast("Kube", api)
    for n in range(300):
        store.put(POD, pod("ContainerCreating", role="prefill" if n % 2 else "decode", name=f"p{n:03}", uid=f"u{n}"))
    observer = Observer(clock)
    await observer.observe(store, kube, KEY, "uid-s")
    assert api.queries == []
    assert observer.due_in(KEY) == CREATING_SECONDS
    clock.now += CREATING_SECONDS
    for _ in range(3):
        await observer.observe(store, kube, KEY, "uid-s")
    assert len(api.queries) == 2 * PODS_A_ROLE, "once each, however many passes there are"
    assert observer.due_in(KEY) == AGAIN_SECONDS
    clock.now += AGAIN_SECONDS
    await observer.observe(store, kube, KEY, "uid-s")
    assert len(api.queries) == 4 * PODS_A_ROLE
    observer.forget(KEY)
    assert observer.pods == {}


async def test_a_pod_that_is_being_created_is_seen_with_its_events(api: Api) -> None:
    pulling = {"reason": "Pulling", "note": "Pulling image", "eventTime": "2026-01-02T03:01:00.000000Z"}
    repeated = {**pulling, "series": {"lastObservedTime": "2026-01-02T03:02:00.000000Z"}}
    api.lists["Event"] = [FAILED_MOUNT, repeated]
    assert await seen(api, pod("ContainerCreating")) == (
        PodEvent("Pulling", "Pulling image", "2026-01-02T03:01:00.000000Z", "2026-01-02T03:02:00.000000Z"),
        PodEvent("FailedMount", FAILED_MOUNT["note"], "2026-01-02T03:00:00Z", "2026-01-02T03:04:00Z"),
    ), "oldest first"
    fields = "regarding.kind=Pod,regarding.name=p,regarding.uid=uid-p"
    assert api.queries == [("Event", {"fieldSelector": fields})], "of that pod alone"


async def test_events_are_read_while_an_image_is_pulled_after_the_init_containers(api: Api) -> None:
    api.lists["Event"] = [FAILED_MOUNT]
    live = pod("PodInitializing")
    live["status"]["initContainerStatuses"] = [{"state": {"terminated": {"exitCode": 0}}}]
    assert [event.reason for event in await seen(api, live)] == ["FailedMount"]


@pytest.mark.parametrize(
    "live",
    [
        pod("ImagePullBackOff"),
        pod("ContainerCreating", deletionTimestamp="now"),
        {**pod("ContainerCreating"), "spec": {}},
        {**pod("ContainerCreating"), "status": {**pod("ContainerCreating")["status"], "phase": "Failed"}},
    ],
    ids=["its status says why", "it is being deleted", "it has no node", "its node is gone"],
)
async def test_events_of_other_pods_are_not_read(live: Manifest, api: Api) -> None:
    api.lists["Event"] = [FAILED_MOUNT]
    assert await seen(api, live) == ()
    assert api.queries == []


async def test_events_that_cannot_be_read_do_not_fail_the_pass(api: Api) -> None:
    api.faults["list Event"] = KubeError(500, "InternalError", "")
    assert await seen(api, pod("ContainerCreating")) == ()


async def test_a_secret_that_an_event_says_is_missing_stalls_the_service(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    assert await one_pass(worker)
    (name,) = [name for kind, name in api.objects if kind == "Deployment" and "decode" in name]
    revision = api.objects["Deployment", name]["metadata"]["labels"][contract.LABEL_REVISION]
    api.lists["Event"] = [FAILED_MOUNT]
    clock = Clock()
    worker = replace(worker, reconciler=replace(worker.reconciler, observer=Observer(clock)))
    worker.reconciler.store.put(POD, pod("ContainerCreating", revision=revision))
    result = await worker.reconciler.reconcile(KEY)
    assert result.requeue_after == CREATING_SECONDS
    clock.now += CREATING_SECONDS
    await worker.reconciler.reconcile(KEY)
    assert condition(api, "Stalled") == ("True", "SecretNotFound")
