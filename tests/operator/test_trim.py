"""The store keeps what somebody reads of an object; what it keeps reads as the complete object does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, POOL_SCALER, SERVICE, Manifest
from phasewise_operator.observed import PodView
from phasewise_operator.reconcile.managed_fields import extract, owned_fields, owns
from phasewise_operator.reconcile.observe import _is_creating
from phasewise_operator.trim import trim
from phasewise_runtime import contract

DEPLOYED: Manifest = json.loads((Path(__file__).parent / "reconcile" / "deployment.json").read_text())
LABELS = {
    contract.LABEL_SERVICE: "chat",
    contract.LABEL_ROLE: contract.DECODE,
    contract.LABEL_REVISION: "r1",
    contract.LABEL_GPUS: "2",
}
WAITING = {"name": "engine", "restartCount": 2, "state": {"waiting": {"reason": "ContainerCreating"}}, "ready": False}
FAILED = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no such model"}}


def pod(**status: Any) -> Manifest:
    conditions = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"},
        {"type": "Ready", "status": "True", "lastProbeTime": None},
        {"type": "Initialized", "status": "True"},
    ]
    meta = {
        "name": "p",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": dict(LABELS),
        "annotations": {contract.ANNOTATION_DELETION_COST: "-1", "other": "x" * 1000},
        "managedFields": [{"manager": "kubelet"}, {"manager": contract.FIELD_MANAGER, "operation": "Apply"}],
    }
    container = {"name": "engine", "env": [{"name": "A", "value": "x" * 1000}]}
    all_status = {"phase": "Pending", "podIP": "10.0.0.1", "hostIP": "10.0.0.9", "conditions": conditions, **status}
    return {"metadata": meta, "spec": {"nodeName": "n", "containers": [container]}, "status": all_status}


def test_a_trimmed_pod_reads_as_the_complete_one() -> None:
    for statuses in ([WAITING], [{**WAITING, "lastState": FAILED, "image": "i" * 100}], []):
        complete = pod(containerStatuses=statuses, initContainerStatuses=statuses)
        slim = trim(POD, complete)
        assert PodView.of(slim) == PodView.of({**complete, "kind": "Pod"})
        assert _is_creating(slim) == _is_creating(complete)
    assert PodView.of(slim).unschedulable == "no node"


def test_a_pod_that_is_deleted_is_still_seen_as_such() -> None:
    terminating = pod()
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert PodView.of(trim(POD, terminating)).deleting


def test_little_is_left_of_a_pod_and_the_event_keeps_its_object() -> None:
    complete = pod(containerStatuses=[{**WAITING, "imageID": "sha256:" + "a" * 600}])
    before = json.dumps(complete)
    assert len(json.dumps(trim(POD, complete))) < 900
    assert json.dumps(complete) == before


def test_pods_of_one_revision_share_their_labels() -> None:
    assert trim(POD, pod())["metadata"]["labels"] is trim(POD, pod())["metadata"]["labels"]


def test_a_pod_without_labels_and_status_is_trimmed_too() -> None:
    bare = {"metadata": {"name": "p", "namespace": "default", "labels": None}, "spec": None, "status": None}
    assert trim(POD, bare)["metadata"]["labels"] == {}


def test_of_a_child_our_own_fields_are_kept_and_drift_is_seen_as_before() -> None:
    slim = trim(DEPLOYMENT, DEPLOYED)
    assert [m["manager"] for m in slim["metadata"]["managedFields"]] == [contract.FIELD_MANAGER]
    assert owned_fields(slim) == owned_fields(DEPLOYED)
    assert extract(slim) == extract(DEPLOYED)
    assert owns(owned_fields(slim), extract(DEPLOYED))
    assert trim(DEPLOYMENT, slim) == slim


def test_of_a_child_that_is_compared_by_its_metadata_alone_nothing_else_is_kept() -> None:
    slim = trim(SERVICE, {"metadata": {"name": "s", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}})
    assert slim.keys() == {"apiVersion", "kind", "metadata"}
    scaler = trim(POOL_SCALER, {"metadata": {"name": "s", "namespace": "default"}, "spec": {"replicas": 2}})
    assert scaler["spec"] == {"replicas": 2}


def test_the_fields_that_many_children_have_in_common_are_kept_once() -> None:
    first, second = (trim(DEPLOYMENT, json.loads(json.dumps(DEPLOYED)))["metadata"] for _ in range(2))
    assert first["managedFields"][0]["fieldsV1"] is second["managedFields"][0]["fieldsV1"]


def test_of_a_service_the_copy_that_kubectl_keeps_is_left_out() -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"}
    meta = {"name": "s", "namespace": "default", "managedFields": [{"manager": "m"}], "annotations": annotations}
    slim = trim(INFERENCE_SERVICE, {"metadata": meta, "spec": {"a": 1}})
    assert slim["metadata"] == {"name": "s", "namespace": "default", "annotations": {"mine": "1"}}
    assert slim["spec"] == {"a": 1}
