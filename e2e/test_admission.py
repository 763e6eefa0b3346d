"""What the chart's admission policies refuse, on the API server: pod templates that are not Safe, and what the operator
has no need to write.

Every request is a dry run: admission judges it, and nothing is stored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from e2e import cluster
from e2e.cluster import ClusterError
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.deploy import OPERATOR
from e2e.service import Service, quickstart
from phasewise_operator.api.pod_templates import ADVICE
from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_runtime import contract

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "tests/operator/api/pod_templates.yaml").read_text()
)
AS_OPERATOR = ("--dry-run=server", f"--as=system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR}")


@pytest.fixture(scope="module")
def api(phasewise: None) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(config.new_client_from_config(str(cluster.kubeconfig_path())))


def forbidden_fields(api: client.CustomObjectsApi, role: str, template: dict[str, Any]) -> list[str]:
    """What the API server says is not allowed in the template of a role."""
    body = quickstart("refused", "default")
    body["spec"].setdefault(role, {})["template"] = template
    kind = INFERENCE_SERVICE
    try:
        api.create_namespaced_custom_object(
            kind.group, kind.version, "default", kind.plural, body, dry_run="All", field_validation="Strict"
        )
    except ApiException as error:
        message: str = json.loads(error.body or "")["message"]
        fields, _, advice = message.partition("denied request: ")[2].partition(": ")
        assert advice == ADVICE, message
        return fields.split(", ")
    return []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_the_api_server_refuses_what_safe_forbids(api: client.CustomObjectsApi, case: dict[str, Any]) -> None:
    role = case.get("role", "decode")
    expected = [f"spec.{role}.template.{field}" for field in case["forbidden"]]
    assert sorted(forbidden_fields(api, role, case["template"])) == sorted(expected)


def test_a_template_that_would_keep_the_api_server_busy_is_refused(api: client.CustomObjectsApi) -> None:
    env = [{"name": f"A{n}", "hidden": ""} for n in range(3000)]
    fields = forbidden_fields(api, "decode", {"spec": {"containers": [{"name": "engine", "env": env}]}})
    assert fields == ["spec.decode.template.spec.containers[engine].env with more than 256 entries"]


FOREIGN: list[tuple[str, ...]] = [
    ("delete", "serviceaccount", "default"),
    ("delete", "service", "kube-dns"),
    ("label", "deployment", "coredns", f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"),
]


@pytest.mark.parametrize("change", FOREIGN, ids=" ".join)
def test_the_operator_can_change_no_object_of_others(change: tuple[str, ...], phasewise: None) -> None:
    with pytest.raises(ClusterError, match="may change or delete only objects of its own"):
        cluster.kubectl("-n", "kube-system", *change, *AS_OPERATOR)


def test_the_operator_can_make_only_what_it_can_take_away_again(phasewise: None) -> None:
    with pytest.raises(ClusterError, match=f"only objects with the label {contract.LABEL_MANAGED_BY}"):
        cluster.kubectl("-n", "default", "create", "deployment", "foreign", "--image=foreign", *AS_OPERATOR)


PATCHES: list[tuple[str, list[Any]]] = [
    ("its image", [{"op": "replace", "path": "/spec/containers/0/image", "value": "another"}]),
    ("a label", [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]),
    ("its role", [{"op": "remove", "path": "/metadata/labels/phasewise.dev~1role"}]),
    ("its owner", [{"op": "remove", "path": "/metadata/ownerReferences"}]),
    ("an annotation", [{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]),
]


@pytest.mark.parametrize(("what", "patch"), PATCHES, ids=[what for what, _ in PATCHES])
def test_the_operator_can_change_nothing_of_a_pod(what: str, patch: list[Any], chat: Service) -> None:
    (pod, *_) = chat.pods(contract.ROUTER)
    change = ("patch", "pod", pod["metadata"]["name"], "--type=json", "-p", json.dumps(patch))
    with pytest.raises(ClusterError, match=f"nothing of a pod but the annotation {contract.ANNOTATION_DELETION_COST}"):
        cluster.kubectl("-n", chat.namespace, *change, *AS_OPERATOR)


def test_the_operator_can_set_the_deletion_cost_of_its_own_pods_only(chat: Service) -> None:
    (pod, *_) = chat.pods(contract.ROUTER)
    cost = f"{contract.ANNOTATION_DELETION_COST}=-1"
    cluster.kubectl("-n", chat.namespace, "annotate", "pod", pod["metadata"]["name"], cost, *AS_OPERATOR)
    with pytest.raises(ClusterError, match="may change its own pods only"):
        cluster.kubectl("-n", "kube-system", "annotate", "pods", "--all", cost, *AS_OPERATOR)
