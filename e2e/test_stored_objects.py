"""Objects stored under an older CRD: before maxGenerationSeconds and holdSeconds were renamed, and before there were
rules that they break. They are read as before, and still editable.

As in test_crds.py a copy of the CRD under another group is tried, first as it was and then as it is.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster import ClusterError, kubectl
from e2e.cluster.progress import wait_for
from e2e.test_crds import COPY, SERVICE_CRD, TABLE, copied, merged
from phasewise_operator.api import InferenceServiceSpec

pytestmark = pytest.mark.e2e

RENAMED_GROUP = "renamed.phasewise.dev"
STORED = f"{COPY.lower()}inferenceservices.{RENAMED_GROUP}/llama"


BROKEN = {
    "scaling": {"gpuBudget": 4},
    "prefill": {"accelerator": {}, "replicas": {"min": 0, "max": 2}, "parallelism": {"tensor": 4}},
    "decode": {
        "accelerator": {},
        "replicas": {"min": 0},
        "parallelism": {"tensor": 4, "pipeline": 1},
        "resources": {"requests": {"cpu": 2, "memory": -1}, "limits": {"cpu": 1}},
    },
}
"""Against every rule that came after the first release."""


def without_rules(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_rules(value) for key, value in schema.items() if key != "x-kubernetes-validations"}
    return schema


def before_the_rename(crd: dict[str, Any]) -> dict[str, Any]:
    """The CRD without rules and with the two fields as they were: integers with a default, which every object got when
    it was stored."""
    old = copy.deepcopy(crd)
    version = old["spec"]["versions"][0]
    version["schema"] = without_rules(version["schema"])
    fields = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del fields["maxGeneration"], fields["hold"]
    fields["maxGenerationSeconds"] = {"type": "integer", "minimum": 10, "maximum": 86400, "default": 600}
    fields["holdSeconds"] = {"type": "integer", "minimum": 0, "maximum": 3600, "default": 30}
    return old


def create(change: dict[str, Any], *options: str, name: str = "llama") -> str:
    """Create the base of the table with this change; what kubectl printed."""
    body = copied(merged(TABLE["base"], {"metadata": {"name": name}, "spec": change}), RENAMED_GROUP)
    return kubectl("create", "-n", "default", *options, "-f", "-", text=yaml.safe_dump(body))


def is_new_crd_served() -> bool:
    """Whether the API server refuses an old name yet: it takes a moment to serve a changed CRD."""
    try:
        create({"holdSeconds": 30}, "--dry-run=server")
    except ClusterError as error:
        return "holdSeconds was renamed" in str(error)
    return False


@pytest.fixture(scope="module")
def stored() -> Iterator[str]:
    """A service that was stored under the old CRD with 900 s; the new CRD has replaced that one."""
    crd = f"crd/{STORED.partition('/')[0]}"
    old, new = (copied(manifest, RENAMED_GROUP) for manifest in (before_the_rename(SERVICE_CRD), SERVICE_CRD))
    try:
        kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump(old))
        kubectl("wait", "--for=condition=Established", "--timeout=30s", crd)
        create({"maxGenerationSeconds": 900})
        create(BROKEN, name="broken")
        kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump(new))
        wait_for("the new CRD is served", is_new_crd_served, 30)
        yield STORED
    finally:
        kubectl("delete", "--ignore-not-found", crd)


def read_spec(name: str) -> dict[str, Any]:
    return json.loads(kubectl("get", name, "-n", "default", "-o", "json"))["spec"]


def change_spec(name: str, change: dict[str, Any]) -> None:
    kubectl("patch", name, "-n", "default", "--type=merge", "-p", json.dumps({"spec": change}))


def test_a_stored_object_with_the_old_names_is_read_and_can_be_edited(stored: str) -> None:
    change_spec(stored, {"slo": {"ttft": "1m30s"}})
    spec = read_spec(stored)
    assert (spec["maxGenerationSeconds"], spec["holdSeconds"], spec["slo"]["ttft"]) == (900, 30, "1m30s")
    model = InferenceServiceSpec.model_validate(spec)
    assert (model.max_generation_seconds, model.hold_seconds) == (900, 30)


def test_the_status_of_a_stored_object_with_the_old_names_can_be_written(stored: str) -> None:
    status = json.dumps({"status": {"observedGeneration": 1}})
    kubectl("patch", stored, "-n", "default", "--subresource=status", "--type=merge", "-p", status)


def test_a_new_name_wins_over_the_stored_old_one(stored: str) -> None:
    change_spec(stored, {"maxGeneration": "20m"})
    try:
        assert InferenceServiceSpec.model_validate(read_spec(stored)).max_generation_seconds == 1200
    finally:
        change_spec(stored, {"maxGeneration": None})


def test_another_value_under_an_old_name_is_refused_with_the_new_name(stored: str) -> None:
    with pytest.raises(ClusterError, match="maxGenerationSeconds was renamed: write maxGeneration with a unit"):
        change_spec(stored, {"maxGenerationSeconds": 901})
    with pytest.raises(ClusterError, match="holdSeconds was renamed: write hold with a unit"):
        change_spec(stored, {"holdSeconds": 31})


@pytest.mark.usefixtures("stored")
def test_a_stored_object_that_breaks_later_rules_can_be_edited_where_the_edit_breaks_no_other() -> None:
    broken = STORED.replace("/llama", "/broken")
    for change in ({"slo": {"ttft": "2s"}}, {"decode": {"replicas": {"min": 0}}}, {"paused": True}):
        change_spec(broken, change)
    assert InferenceServiceSpec.model_validate(read_spec(broken)).slo.ttft.seconds == 2
    with pytest.raises(ClusterError, match="requests are above limits"):
        change_spec(broken, {"decode": {"resources": {"requests": {"cpu": 3}}}})
    with pytest.raises(ClusterError, match="does not cover the minima of both pools"):
        change_spec(broken, {"decode": {"replicas": {"min": 1}}, "prefill": {"replicas": {"min": 1}}})
    change_spec(broken, {"scaling": {"gpuBudget": 8}})
    with pytest.raises(ClusterError, match="smaller than one replica of each pool"):
        change_spec(broken, {"scaling": {"gpuBudget": 4}})
