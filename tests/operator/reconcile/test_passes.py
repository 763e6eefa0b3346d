"""Passes against a fake API server that can be made to fail: what is written, and what happens when it cannot be.

The real API server shows the rest, in e2e.
"""

from __future__ import annotations

import copy
from typing import cast

import pytest
from tests.operator.reconcile.fake_api import KEY, Api, Apply, Loop, condition, one_pass

from phasewise_operator.kinds import DEPLOYMENT, EVENT, SERVICE
from phasewise_operator.kube_errors import KubeError, NotLeadingError
from phasewise_operator.reconcile.worker import Worker
from phasewise_runtime import contract


async def test_a_second_pass_over_the_same_writes_nothing(api: Api, worker: Worker, user_applies: Apply) -> None:
    user_applies()
    assert await one_pass(worker)
    assert any(w.startswith("Deployment chat-decode-") for w in api.writes)
    assert "InferenceService chat status" in api.writes
    api.writes.clear()
    worker.queue.add(KEY)
    assert await one_pass(worker)
    assert api.writes == []


async def test_a_child_that_fails_is_tried_again_and_does_not_hold_up_the_others(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    api.faults["Service"] = KubeError(500, "InternalError", "etcd is slow")
    user_applies()
    assert not await one_pass(worker)
    assert ("ServiceAccount", "chat-router") in api.objects
    del api.faults["Service"]
    assert await one_pass(worker), "the key came back by itself"
    assert ("Service", "chat") in api.objects


async def test_a_refused_child_stalls_with_the_servers_words(api: Api, worker: Worker, user_applies: Apply) -> None:
    api.faults["Deployment"] = KubeError(422, "Invalid", "spec.template: bad toleration")
    user_applies()
    await one_pass(worker)
    assert condition(api, "Stalled") == ("True", "ApplyRefused")


async def test_nothing_is_deleted_while_a_deployment_cannot_be_written(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies(prefill={})
    await one_pass(worker)
    api.faults["Deployment"] = KubeError(500, "InternalError", "")
    user_applies(generation=2, engine={"image": "other:2"})
    await one_pass(worker)
    assert not any(w.startswith("delete") for w in api.writes)


async def test_what_was_deleted_is_not_deleted_again_while_the_watch_is_late(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies(prefill={})
    await one_pass(worker)
    user_applies(generation=2)
    for _ in range(3):
        worker.queue.add(KEY)
        await one_pass(worker)
    deleted = [w for w in api.writes if w.startswith("delete")]
    assert deleted
    assert len(deleted) == len(set(deleted))


async def test_somebody_elses_object_is_left_alone(api: Api, worker: Worker, user_applies: Apply) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": "default"}, "spec": 1}
    api.objects["Service", "chat"] = copy.deepcopy(theirs)
    user_applies()
    await one_pass(worker)
    assert api.objects["Service", "chat"] == theirs
    assert condition(api, "Stalled") == ("True", "NameConflict")


async def test_an_object_of_an_inference_service_of_kserve_is_no_child_that_is_waited_for(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    """Its InferenceService may have the same name, and makes a Service of that name."""
    owner = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "name": "chat", "uid": "uid-k"}
    meta = {"name": "chat", "namespace": "default", "ownerReferences": [{**owner, "controller": True}]}
    api.objects["Service", "chat"] = {"apiVersion": "v1", "kind": "Service", "metadata": meta}
    user_applies()
    await one_pass(worker)
    assert condition(api, "Stalled") == ("True", "NameConflict")


async def test_a_child_of_ours_without_owner_and_labels_is_adopted(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    await one_pass(worker)
    bare = api.objects["Service", "chat"]
    del bare["metadata"]["ownerReferences"], bare["metadata"]["labels"]
    worker.reconciler.store.drop(SERVICE, copy.deepcopy(bare))
    worker.queue.add(KEY)
    assert await one_pass(worker)
    assert api.objects["Service", "chat"]["metadata"]["labels"][contract.LABEL_SERVICE] == "chat"
    labelled = api.objects["Service", "chat"]
    labelled["metadata"]["labels"][contract.LABEL_SERVICE] = "other"
    del labelled["metadata"]["ownerReferences"]
    labelled["metadata"]["resourceVersion"] = "1000"
    worker.reconciler.store.put(SERVICE, copy.deepcopy(labelled))
    worker.queue.add(KEY)
    assert not await one_pass(worker)
    assert condition(api, "Stalled") == ("True", "NameConflict")


async def test_a_child_of_ours_without_an_owner_is_adopted(api: Api, worker: Worker, user_applies: Apply) -> None:
    """As `kubectl delete --cascade=orphan` leaves it, to be applied again without an outage."""
    user_applies()
    await one_pass(worker)
    orphan = api.objects["Service", "chat"]
    del orphan["metadata"]["ownerReferences"]
    orphan["metadata"]["resourceVersion"] = "1000"
    worker.reconciler.store.put(SERVICE, copy.deepcopy(orphan))
    worker.queue.add(KEY)
    assert await one_pass(worker)
    assert api.objects["Service", "chat"]["metadata"]["ownerReferences"]


async def test_a_spec_that_cannot_be_rendered_does_not_stop_drift_repair(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    await one_pass(worker)
    gone = api.objects.pop(("Service", "chat"))
    worker.reconciler.store.drop(SERVICE, gone)
    user_applies(generation=2, engine={"args": {"host": "::"}})
    await one_pass(worker)
    assert ("Service", "chat") in api.objects
    assert condition(api, "Stalled") == ("True", "InvalidSpec")


async def test_a_repair_that_fails_under_such_a_spec_is_tried_again(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    api.faults["Service"] = KubeError(500, "InternalError", "etcd is slow")
    user_applies(engine={"args": {"host": "::"}})
    await one_pass(worker)
    del api.faults["Service"]
    await one_pass(worker)
    assert ("Service", "chat") in api.objects


async def test_an_engine_argument_that_no_command_line_can_have_is_refused_with_how_to_write_it(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies(engine={"args": {"speculative-config": [["ngram"], True]}})
    await one_pass(worker)
    stalled = next(c for c in api.objects["InferenceService", "chat"]["status"]["conditions"] if c["type"] == "Stalled")
    assert stalled["message"].startswith("spec.engine.args.speculative-config: write")
    assert stalled["message"].count("speculative-config") == 1


async def test_nothing_is_made_or_deleted_while_children_cannot_be_read_and_the_status_says_so(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    store = worker.reconciler.store
    user_applies()
    await one_pass(worker)
    ready = condition(api, "Ready")
    store.set_unread(DEPLOYMENT, "default", "deployments in namespace default cannot be read: forbidden")
    api.writes.clear()
    user_applies(generation=2, engine={"image": "other:2"})
    assert not await one_pass(worker)
    assert {w for w in api.writes if "Event" not in w and "ChildrenUnknown" not in w} == {
        "InferenceService chat status"
    }
    assert condition(api, "Stalled") == ("True", "ChildrenUnknown")
    assert condition(api, "Ready") == ready, "what is known of the children stays"
    for key in store.set_read(DEPLOYMENT, "default"):
        worker.queue.add(key)
    assert await one_pass(worker)
    assert any(w.startswith("Deployment chat-decode-") for w in api.writes)
    assert condition(api, "Stalled")[0] == "False"


async def test_a_service_that_is_seen_before_its_children_waits_without_a_word(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    worker.reconciler.store.set_unread(DEPLOYMENT, None)
    user_applies()
    assert await one_pass(worker)
    assert api.writes == []


async def test_a_lost_lease_ends_the_pass_at_once(api: Api, worker: Worker, user_applies: Apply) -> None:
    api.faults = {k: NotLeadingError("x") for k in ("ServiceAccount", "Service", "PodDisruptionBudget")}
    user_applies()
    with pytest.raises(NotLeadingError):
        await one_pass(worker)
    assert not any(w.startswith("Deployment") for w in api.writes)


async def test_a_service_that_changed_meanwhile_is_planned_anew_before_anything_is_written(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    api.objects["InferenceService", "chat"]["metadata"].update(generation=2, resourceVersion="99")
    api.objects["InferenceService", "chat"]["spec"]["router"] = {"replicas": 7}
    assert await one_pass(worker)
    assert api.writes == []
    assert cast("Loop", worker.reconciler.recommender).changed == [KEY], "the scaling loop hears of it too"
    await one_pass(worker)
    assert api.objects["Deployment", "chat-router"]["spec"]["replicas"] == 7


async def test_a_deleted_service_is_left_to_the_garbage_collector(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    del api.objects["InferenceService", "chat"]
    await one_pass(worker)
    assert await one_pass(worker)
    assert api.writes == []


async def test_paused_means_that_nothing_is_changed(api: Api, worker: Worker, user_applies: Apply) -> None:
    user_applies(paused=True)
    await one_pass(worker)
    assert {w.split()[0] for w in api.writes} == {"InferenceService", "Event"}
    assert condition(api, "Reconciling") == ("True", "Paused")


async def test_a_spec_that_cannot_be_rendered_stalls_and_what_runs_is_left(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    await one_pass(worker)
    running = {ref for ref in api.objects if ref[0] == "Deployment"}
    bad = {"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}}
    user_applies(generation=2, decode={"template": bad})
    await one_pass(worker)
    assert condition(api, "Stalled") == ("True", "InvalidSpec")
    assert {ref for ref in api.objects if ref[0] == "Deployment"} == running
    user_applies(generation=3)
    await one_pass(worker)
    assert condition(api, "Stalled")[0] == "False"


async def test_an_event_that_is_refused_does_not_fail_the_pass(api: Api, worker: Worker, user_applies: Apply) -> None:
    api.faults[EVENT.name] = KubeError(403, "Forbidden", "")
    user_applies()
    assert await one_pass(worker)
    assert ("Deployment", "chat-router") in api.objects
    assert condition(api, "Ready")[0] == "False", "the status is written"
    assert not any(w.startswith("Event") for w in api.writes)
