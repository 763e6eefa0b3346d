"""Which nodes are drained, and whom that concerns."""

from __future__ import annotations

from phasewise_operator.kinds import NODE, POD, Manifest
from phasewise_operator.store import Store
from phasewise_runtime import contract


def node(name: str, version: int = 1) -> Manifest:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def store() -> Store:
    """With a pod of service a on node 1, and one of service b on node 2."""
    made = Store()
    for service, on in (("a", "1"), ("b", "2")):
        labels = {contract.LABEL_SERVICE: service}
        meta = {"name": f"{service}-pod", "namespace": "ns", "uid": service, "labels": labels, "resourceVersion": "1"}
        made.put(POD, {"metadata": meta, "spec": {"nodeName": on}})
    return made


def test_a_node_that_is_drained_concerns_the_services_with_pods_there_once() -> None:
    known = store()
    known.nodes.set_read(NODE, None)
    assert known.nodes.put(NODE, node("1")) == {("ns", "a")}
    assert known.nodes.put(NODE, node("1", version=2)) == set(), "a heartbeat"
    assert known.nodes.put(NODE, node("3")) == set(), "no pods there"
    assert known.nodes.cordoned == {"1", "3"}
    assert known.nodes.drop(NODE, node("1")) == {("ns", "a")}
    assert known.nodes.drop(NODE, node("1")) == set()
    assert known.nodes.cordoned == {"3"}


def test_what_a_list_lacks_is_drained_no_more() -> None:
    known = store()
    known.nodes.put_listed(NODE, node("1"))
    known.nodes.put_listed(NODE, node("2"))
    assert known.nodes.drop_unlisted(NODE, None, ["uid-2"], 9) == {("ns", "a")}


def test_before_nodes_are_read_and_without_the_right_to_nothing_is_known() -> None:
    known = store()
    assert known.nodes.cordoned is None
    assert known.nodes.set_read(NODE, None) == {("ns", "a"), ("ns", "b")}
    assert known.nodes.cordoned == set()
    assert known.nodes.set_read(NODE, None) == set()
    known.nodes.set_unread(NODE, None, "forbidden")
    assert known.nodes.cordoned is None
