"""What is counted of a service's revisions, pods and GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed, PodEvent, PodView, Workload
from phasewise_operator.revisions import gpus_held, running_revisions
from phasewise_runtime import contract


def deployment(role: str, revision: str, replicas: int, gpus: int) -> Manifest:
    labels = {contract.LABEL_ROLE: role, contract.LABEL_REVISION: revision, contract.LABEL_GPUS: str(gpus)}
    meta = {"name": f"{role}-{revision}", "labels": labels}
    return {"kind": "Deployment", "metadata": meta, "spec": {"replicas": replicas}}


def pods(role: str, revision: str, count: int, gpus: int, deleting: int = 0) -> list[PodView]:
    return [
        PodView(f"{role}-{revision}-{n}", role, revision, ready=True, deleting=n < deleting, gpus=gpus)
        for n in range(count)
    ]


def seen(*children: Manifest, pods: list[PodView]) -> Observed:
    return Observed({(m["kind"], m["metadata"]["name"]): m for m in children}, tuple(pods))


def test_before_anything_is_recorded_a_deployment_that_was_complete_once_counts_as_one_that_served() -> None:
    """Recording it takes a write, which the first rollout makes."""
    old, attempt = deployment("decode", "old", 2, gpus=1), deployment("decode", "new", 1, gpus=1)
    empty = deployment("prefill", "old", 0, gpus=1)
    for live in (old, attempt, empty):
        live["status"] = {"conditions": [{"type": "Progressing", "reason": "NewReplicaSetAvailable"}]}
    found = {(r.role, r.revision): r.served for r in running_revisions(seen(old, empty, pods=[]))}
    assert found == {("decode", "old"): True, ("prefill", "old"): False}
    old["metadata"]["annotations"] = {contract.ANNOTATION_SERVED: "true"}
    recorded = {r.revision: r.served for r in running_revisions(seen(old, attempt, pods=[]))}
    assert recorded == {"old": True, "new": False}


def test_gpus_are_held_by_pods_of_all_revisions_and_by_replicas_that_are_to_become_pods() -> None:
    observed = seen(
        deployment("prefill", "new", 3, gpus=2),
        deployment("decode", "new", 1, gpus=4),
        deployment("router", "", 2, gpus=0),
        pods=[
            *pods("prefill", "new", 1, gpus=2),
            *pods("decode", "new", 2, gpus=4, deleting=1),
            *pods("decode", "removed", 2, gpus=1, deleting=2),
            *pods("router", "", 2, gpus=0),
        ],
    )
    held = {(r.role, r.revision): gpus_held([r]) for r in running_revisions(observed)}
    assert held == {("prefill", "new"): 3 * 2, ("decode", "new"): 2 * 4, ("decode", "removed"): 2 * 1}
    assert gpus_held(running_revisions(observed)) == 16


def test_a_revision_without_a_deployment_is_known_by_the_pods_that_are_left() -> None:
    (left,) = running_revisions(seen(pods=pods("decode", "removed", 2, gpus=1)))
    assert (left.replicas, left.ready, left.pods, left.served) == (0, 0, 2, False)


def test_a_revision_says_what_may_come_and_what_goes() -> None:
    """A rolling update of its own may add a pod; terminating pods go, and pods without a node do not come up."""
    live = deployment("decode", "r", 3, gpus=1)
    live["metadata"]["annotations"] = {contract.ANNOTATION_SERVED: "true"}
    live["metadata"]["labels"][contract.LABEL_LLMD_ROLE] = "prefill-decode"
    live["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 1}}
    live["status"] = {"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2, "availableReplicas": 1}
    unscheduled = PodView("u", "decode", "r", ready=False, deleting=False, gpus=1, unschedulable="0/3 nodes")
    (found,) = running_revisions(seen(live, pods=[*pods("decode", "r", 3, 1, deleting=1), unscheduled]))
    assert (found.pods, found.terminating, found.unschedulable) == (4, 1, 1)
    assert (found.ready, found.available, found.surge) == (2, 1, 1)
    assert (found.served, found.aggregated) == (True, True)
    live["status"]["updatedReplicas"] = 3
    assert running_revisions(seen(live, pods=[]))[0].surge == 0, "every pod is of the newest template"


@pytest.mark.parametrize(
    ("available", "proved", "both"),
    [(3, "012", 3), (3, "01", 2), (2, "01", 1), (2, "012", 2), (1, "0", 0), (0, "012", 0), (3, "", 0)],
)
def test_pods_that_are_available_and_proved_are_counted_at_the_least(available: int, proved: str, both: int) -> None:
    """A Deployment does not say which of its ready pods are available."""
    live = deployment("decode", "r", 3, gpus=1)
    live["status"] = {"replicas": 3, "readyReplicas": 3, "availableReplicas": available}
    observed = seen(live, pods=[*pods("decode", "r", 3, gpus=1), *pods("decode", "other", 3, gpus=1)])
    names = frozenset(f"decode-r-{n}" for n in proved) | {"decode-other-0"}
    found = {r.revision: r.proved for r in running_revisions(observed, names)}
    assert found["r"] == both
    assert running_revisions(observed)[0].proved is None


TEMPLATE = {contract.LABEL_ROLE: "decode", contract.LABEL_REVISION: "r", contract.LABEL_GPUS: "4"}


@pytest.mark.parametrize("written", ["x", "", "-1", "1.5", "\u0663", "9" * 5000, None], ids=lambda text: repr(text)[:8])
def test_a_label_or_an_annotation_that_is_no_number_is_read_as_if_it_were_not_there(written: str | None) -> None:
    live = deployment("decode", "r", 2, gpus=0)
    live["metadata"]["labels"][contract.LABEL_GPUS] = written
    live["metadata"]["annotations"] = {contract.ANNOTATION_DESIRED: written}
    pod = {"metadata": {"name": "p", "labels": {contract.LABEL_GPUS: written}}}
    assert (Workload.of(live).gpus, Workload.of(live).desired, PodView.of(pod).gpus) == (0, None, 0)
    live["spec"]["template"] = {"metadata": {"labels": TEMPLATE}}
    assert Workload.of(live).gpus == 4


def test_a_deployment_that_lost_its_labels_is_what_its_pods_are() -> None:
    live = deployment("decode", "r", 2, gpus=4)
    live["spec"]["template"] = {"metadata": {"labels": TEMPLATE}}
    expected = Workload.of(live)
    for labels in (None, {}, {contract.LABEL_ROLE: "prefill", contract.LABEL_REVISION: "other"}):
        live["metadata"]["labels"] = labels
        assert Workload.of(live) == expected


JUNK = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
NAMES = st.sampled_from(
    [
        *("labels", "annotations", "ownerReferences", "generation", "creationTimestamp", "conditions", "podIP", "type"),
        *("status", "reason", "message", "containerStatuses", "initContainerStatuses", "state", "lastState", "waiting"),
        *("terminated", "exitCode", "restartCount", "replicas", "readyReplicas", "template", "metadata", "series"),
        *("controller", "uid", "decode", "desired", "scaling", "decisions", "role", "to", contract.LABEL_GPUS),
    ]
)
SHAPES = st.recursive(JUNK, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=4))


@given(meta=st.dictionaries(NAMES, SHAPES, max_size=3), spec=SHAPES, status=SHAPES)
def test_no_shape_of_a_live_object_ends_a_pass(meta: dict[str, Any], spec: Any, status: Any) -> None:
    live = {"metadata": {**meta, "name": "x"}, "spec": spec, "status": status}
    objects = [{**live, "kind": kind} for kind in ("Deployment", "Pod", "Service")]
    observed = Observed.of(objects, "u", {"x": [PodEvent.of(live)]}, status)
    assert len(running_revisions(observed)) <= 2
    assert all(isinstance(w.replicas, int) and isinstance(w.role, str) for w in observed.workloads)


def test_the_size_of_a_pool_is_that_of_its_last_decision() -> None:
    status = {"decode": {"desired": 1}, "scaling": {"decisions": [{"role": "decode", "to": 3}, {"role": "prefill"}]}}
    assert Observed.of([], "u", status=status).reported == {"decode": 3}, "1 of 3 is of the newest revision so far"
    assert Observed.of([], "u", status={"decode": {"desired": 2}}).reported == {"decode": 2}
