"""The store keeps the newest known copy of an object, and forgets what was deleted."""

from __future__ import annotations

from typing import Any

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, Manifest
from phasewise_operator.store import Store
from phasewise_runtime import contract

KEY = ("default", "chat")


def child(name: str, version: int, uid: str = "1", **more: Any) -> Manifest:
    meta = {
        "name": name,
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {contract.LABEL_SERVICE: "chat"},
    }
    return {"metadata": meta, **more}


def service(version: int, uid: str = "s") -> Manifest:
    return {"metadata": {"name": "chat", "namespace": "default", "uid": uid, "resourceVersion": str(version)}}


def test_a_child_that_gets_its_label_back_is_known_again() -> None:
    store = Store()
    store.put(DEPLOYMENT, child("d", 3))
    store.drop(DEPLOYMENT, child("d", 4))
    assert store.put(DEPLOYMENT, child("d", 3)) == set(), "an older list"
    assert store.put(DEPLOYMENT, child("d", 5)) == {KEY}


def test_the_watch_event_of_a_status_that_the_operator_wrote_concerns_nobody() -> None:
    store = Store()
    assert store.put(INFERENCE_SERVICE, service(3)) == {KEY}
    store.put(INFERENCE_SERVICE, service(4))  # the answer to a write
    assert store.put(INFERENCE_SERVICE, service(4)) == set(), "its event"
    assert store.put(INFERENCE_SERVICE, service(5)) == {KEY}, "somebody else's edit"
    assert store.put(INFERENCE_SERVICE, service(5, uid="other")) == {KEY}
    store.put(DEPLOYMENT, child("d", 6))
    assert store.put(DEPLOYMENT, child("d", 6)) == {KEY}, "the pass that wrote it did not see it"


def relabelled(manifest: Manifest, service: str, version: int) -> Manifest:
    meta = manifest["metadata"]
    labels = {contract.LABEL_SERVICE: service}
    return {**manifest, "metadata": {**meta, "labels": labels, "resourceVersion": str(version)}}


def test_a_child_whose_label_names_another_service_concerns_both() -> None:
    """The service that it belonged to has to see that it is missing, or nobody repairs the label."""
    store = Store()
    store.put(DEPLOYMENT, child("d", 3))
    assert store.put(DEPLOYMENT, relabelled(child("d", 3), "other", 4)) == {KEY, ("default", "other")}
    assert store.children(KEY) == []
    assert [m["metadata"]["name"] for m in store.children(("default", "other"))] == ["d"]
    store.put(DEPLOYMENT, child("d", 3))
    assert store.children(KEY) == [], "an older event of the time before"
    assert store.drop(DEPLOYMENT, child("d", 5)) == {KEY, ("default", "other")}
    assert store.keys() == set()


def test_a_child_whose_label_became_empty_concerns_the_service_that_it_belonged_to() -> None:
    """The watch selects by the label's key, so it shows such a child as modified, never as deleted."""
    store = Store()
    store.put(DEPLOYMENT, child("d", 3))
    emptied = relabelled(child("d", 3), "", 4)
    store.put(DEPLOYMENT, child("d", 5))
    assert store.put(DEPLOYMENT, emptied) == set(), "an older event: the label has been repaired since"
    assert len(store.children(KEY)) == 1
    emptied_again = relabelled(child("d", 3), "", 6)
    assert store.put_listed(DEPLOYMENT, emptied_again) == {KEY}
    assert store.children(KEY) == []
    assert store.put(DEPLOYMENT, emptied_again) == set(), "nobody's any more"
    assert store.put(DEPLOYMENT, child("d", 7)) == {KEY}, "repaired"


def test_nothing_is_kept_of_a_child_that_was_replaced_unseen() -> None:
    store = Store()
    for number in range(10):
        store.put(DEPLOYMENT, child("d", number + 1, uid=str(number)))
    store.drop(DEPLOYMENT, child("d", 99, uid="9"))
    assert (store.keys(), store._service_of) == (set(), {})


def test_an_older_event_does_not_overwrite_a_newer_answer() -> None:
    store = Store()
    store.put(DEPLOYMENT, child("d", 7, spec={"replicas": 2}))
    store.put(DEPLOYMENT, child("d", 5, spec={"replicas": 1}))
    assert [m["spec"]["replicas"] for m in store.children(KEY)] == [2]


def test_a_new_object_of_the_same_name_replaces_the_old_whatever_the_order_of_deletion() -> None:
    store = Store()
    store.put(DEPLOYMENT, child("d", 7, uid="old"))
    store.put(DEPLOYMENT, child("d", 9, uid="new"))
    store.drop(DEPLOYMENT, child("d", 8, uid="old"))
    assert [m["metadata"]["uid"] for m in store.children(KEY)] == ["new"]


def test_a_service_is_found_until_it_is_dropped() -> None:
    store = Store()
    assert store.put(INFERENCE_SERVICE, service(1)) == {KEY}
    assert store.service(KEY) is not None
    store.drop(INFERENCE_SERVICE, service(2, uid="other"))
    assert store.service(KEY) is not None
    store.drop(INFERENCE_SERVICE, service(2))
    assert store.service(KEY) is None


def test_a_list_shows_deletions_that_no_watch_did() -> None:
    store = Store()
    store.put(DEPLOYMENT, child("gone", 1, uid="1"))
    store.put(DEPLOYMENT, child("stays", 2, uid="2"))
    store.put(POD, child("pod", 3, uid="3"))
    assert store.drop_unlisted(DEPLOYMENT, None, ["2"], 9) == {KEY}
    assert [m["metadata"]["name"] for m in store.children(KEY)] == ["stays", "pod"]
    assert store.drop_unlisted(DEPLOYMENT, None, ["2"], 9) == set(), "nothing new, nothing to do"


def test_an_object_that_is_listed_as_it_is_known_is_no_change() -> None:
    store = Store()
    assert store.put_listed(DEPLOYMENT, child("d", 3)) == {KEY}
    assert store.put_listed(DEPLOYMENT, child("d", 3)) == set()
    assert store.put_listed(DEPLOYMENT, child("d", 4)) == {KEY}
    assert store.put_listed(DEPLOYMENT, child("d", 5, uid="another")) == {KEY}


def test_a_list_does_not_judge_what_happened_while_it_was_under_way() -> None:
    store = Store()
    store.put(DEPLOYMENT, child("deleted", 3, uid="1"))
    store.drop(DEPLOYMENT, child("deleted", 6, uid="1"))
    store.put(DEPLOYMENT, child("created", 7, uid="2"))
    store.put_listed(DEPLOYMENT, child("deleted", 3, uid="1"))
    store.drop_unlisted(DEPLOYMENT, None, ["1"], 5)
    assert [m["metadata"]["name"] for m in store.children(KEY)] == ["created"]


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    store = Store()
    store.put(DEPLOYMENT, child("d", 1))
    assert store.drop_unlisted(DEPLOYMENT, "other", [], 9) == set()
    assert store.children(KEY)


def test_services_wait_until_every_kind_of_their_namespace_is_read() -> None:
    store = Store()
    store.put(INFERENCE_SERVICE, service(1))
    store.set_unread(DEPLOYMENT, "default", "deployments cannot be read")
    store.set_unread(POD, None)
    store.set_unread(POD, "other")
    assert sorted(store.unread("default")) == ["", "deployments cannot be read"]
    assert store.set_read(POD, "other") == store.set_read(DEPLOYMENT, "default") == set(), "pods are not read yet"
    assert store.set_read(POD, None) == {KEY}
    assert store.set_read(POD, None) == set(), "nobody waited"
    assert store.unread("default") == []


def test_what_a_list_shows_and_the_store_lacks_is_unknown() -> None:
    store = Store()
    store.put(INFERENCE_SERVICE, service(5))
    assert store.unknown(INFERENCE_SERVICE, [service(5)]) == store.unknown(INFERENCE_SERVICE, [service(4)]) == []
    assert store.unknown(INFERENCE_SERVICE, [service(6)]) == [service(6)]
    assert store.unknown(INFERENCE_SERVICE, [service(3, uid="another")]) == [service(3, uid="another")]


def test_objects_without_our_label_are_not_ours() -> None:
    store = Store()
    stranger = child("d", 1)
    stranger["metadata"]["labels"] = {}
    assert store.put(DEPLOYMENT, stranger) == set()
    assert store.drop(DEPLOYMENT, stranger) == set()
    assert store.keys() == set()
