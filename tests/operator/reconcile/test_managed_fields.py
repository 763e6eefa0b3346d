"""Drift by field ownership, on a Deployment as a real API server stored it after our own apply."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise_operator.kinds import Manifest
from phasewise_operator.reconcile.managed_fields import extract, owned_annotations, owned_fields, owns

LIVE: Manifest = json.loads((Path(__file__).parent / "deployment.json").read_text())


@pytest.fixture
def live() -> Manifest:
    return copy.deepcopy(LIVE)


def container(manifest: Manifest) -> dict[str, Any]:
    return manifest["spec"]["template"]["spec"]["containers"][0]


def ours(live: Manifest) -> dict[str, Any]:
    return next(m for m in live["metadata"]["managedFields"] if m["manager"] == "phasewise")["fieldsV1"]


def test_of_the_annotations_those_that_we_applied_last_are_ours(live: Manifest) -> None:
    live["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    assert owned_annotations(live) == {"phasewise.dev/intent": LIVE["metadata"]["annotations"]["phasewise.dev/intent"]}
    del ours(live)["f:metadata"]["f:annotations"]["f:phasewise.dev/intent"]
    assert owned_annotations(live) == {}


def test_of_an_object_with_other_managed_fields_no_annotation_is_ours(live: Manifest) -> None:
    live["metadata"]["managedFields"] = [{}]
    assert owned_annotations(live) == {}


def test_applied_fields_are_owned_and_can_be_extracted(live: Manifest) -> None:
    intent = extract(live)
    assert owns(owned_fields(live), intent)
    assert intent["spec"]["replicas"] == 1
    assert container(intent)["command"] == ["python3", "/phasewise/launcher.pyz"]
    assert "status" not in intent
    assert "terminationMessagePath" in container(intent)
    assert "dnsPolicy" not in intent["spec"]["template"]["spec"], "a default of the API server's is not ours"
    assert "uid" not in intent["metadata"]


def test_values_that_the_api_server_rewrites_are_no_drift(live: Manifest) -> None:
    intent = extract(live)
    container(intent)["resources"] = {**container(intent).get("resources", {})}
    for part in container(intent)["resources"].values():
        part["cpu"] = "1000m"
    assert owns(owned_fields(live), intent)


Change = Callable[[dict[str, Any]], Any]
LOST: list[tuple[str, Change]] = [
    ("replicas", lambda f: f["f:spec"].pop("f:replicas")),
    ("a label", lambda f: f["f:metadata"]["f:labels"].pop("f:phasewise.dev/role")),
    ("the owner", lambda f: f["f:metadata"].pop("f:ownerReferences")),
    ("the image", lambda f: _container_fields(f).pop("f:image")),
    ("a port", lambda f: _container_fields(f)["f:ports"].popitem()),
    ("an environment variable", lambda f: _container_fields(f)["f:env"].popitem()),
]


def _container_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return fields["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"engine"}']


@pytest.mark.parametrize(("what", "lose"), LOST, ids=[name for name, _ in LOST])
def test_a_field_that_somebody_else_took_is_drift(what: str, lose: Change, live: Manifest) -> None:
    intent = extract(live)
    lose(ours(live))
    assert not owns(owned_fields(live), intent)


def test_fields_added_by_others_are_no_drift(live: Manifest) -> None:
    intent = extract(live)
    live["metadata"]["labels"]["team"] = "a"
    container(live)["env"].append({"name": "ADDED", "value": "by a webhook"})
    assert owns(owned_fields(live), intent)
    assert "ADDED" not in [e["name"] for e in container(extract(live))["env"]]


def test_a_new_field_in_the_intent_is_to_be_written(live: Manifest) -> None:
    intent = extract(live)
    intent["spec"]["minReadySeconds"] = 3
    assert not owns(owned_fields(live), intent)


def test_nothing_is_owned_where_we_never_applied(live: Manifest) -> None:
    live["metadata"]["managedFields"] = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]
    assert owned_fields(live) == {}
