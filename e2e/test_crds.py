"""The API server accepts the CRDs and every example, and refuses bad objects with our messages.

Objects are tried on a copy of the CRDs under another group and other names: this needs no installed chart, changes
nothing of an installed one, and `kubectl get infsvc` does not find the copy.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from e2e.cluster import ClusterError, helm, kubeconfig_path, kubectl

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[1]
GROUP, COPY_GROUP, COPY = "phasewise.dev", "dryrun.phasewise.dev", "DryRun"
CRDS = sorted((ROOT / "crds").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SERVICE_CRD: dict[str, Any] = yaml.safe_load((ROOT / "crds/inferenceservices.yaml").read_text())
SPEC_SCHEMA = SERVICE_CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
ENGINE_ARGS = SPEC_SCHEMA["properties"]["engine"]["properties"]["args"]
TABLE: dict[str, Any] = yaml.safe_load((ROOT / "tests/operator/api/refused.yaml").read_text())


def copied(manifest: dict[str, Any], group: str = COPY_GROUP) -> dict[str, Any]:
    """The same CRD or object under the copy's group and names; an object of another group as it is."""
    if manifest["kind"] == "CustomResourceDefinition":
        return copied_crd(manifest, group)
    if not manifest["apiVersion"].startswith(f"{GROUP}/"):
        return manifest
    return manifest | {"apiVersion": f"{group}/v1alpha1", "kind": COPY + manifest["kind"]}


def copied_crd(manifest: dict[str, Any], group: str) -> dict[str, Any]:
    names = manifest["spec"]["names"]
    kinds = {key: COPY + names[key] for key in ("kind", "listKind")}
    words = {key: COPY.lower() + names[key] for key in ("plural", "singular")}
    return manifest | {
        "metadata": {"name": f"{words['plural']}.{group}"},
        "spec": manifest["spec"] | {"group": group, "names": kinds | words},
    }


def copies(path: Path) -> str:
    return yaml.safe_dump_all(copied(manifest) for manifest in yaml.safe_load_all(path.read_text()))


def crd_name(path: Path) -> str:
    return f"crd/{COPY.lower()}{path.stem}.{COPY_GROUP}"


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A JSON merge patch: mappings are merged, null removes, all else replaces."""
    result = copy.deepcopy(base)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = value
    return result


@pytest.fixture(scope="module")
def api() -> Iterator[client.CustomObjectsApi]:
    """The custom objects' API, with the copied CRDs for as long as this module runs."""
    crds = "\n---\n".join(copies(path) for path in CRDS)
    names = [crd_name(path) for path in CRDS]
    try:
        kubectl("apply", "--server-side", "-f", "-", text=crds)
        kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
        yield client.CustomObjectsApi(config.new_client_from_config(str(kubeconfig_path())))
    finally:
        kubectl("delete", "--ignore-not-found", *names)


def dry_run(api: client.CustomObjectsApi, body: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server would store it."""
    created = api.create_namespaced_custom_object(
        COPY_GROUP,
        "v1alpha1",
        "default",
        f"{COPY}{body['kind']}s".lower(),
        copied(body),
        dry_run="All",
        field_validation="Strict",
    )
    return cast("dict[str, Any]", created)


def refusal(api: client.CustomObjectsApi, body: dict[str, Any]) -> str:
    """The message with which the API server refuses an object."""
    with pytest.raises(ApiException) as refused:
        dry_run(api, body)
    return json.loads(refused.value.body or "")["message"]


def is_established(crd: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    return conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.stem)
def test_the_crd_is_accepted(path: Path) -> None:
    done = kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(path))
    assert done.endswith("serverside-applied (server dry run)\n")


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.stem)
def test_the_schema_is_structural(path: Path) -> None:
    crd = json.loads(kubectl("get", crd_name(path), "-o", "json"))
    assert is_established(crd), crd["status"]["conditions"]


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted(path: Path) -> None:
    kubectl("apply", "-n", "default", "--dry-run=server", "--validate=strict", "-f", "-", text=copies(path))


def test_the_base_of_the_table_is_accepted_with_the_documented_defaults(api: client.CustomObjectsApi) -> None:
    spec = dry_run(api, TABLE["base"])["spec"]
    assert spec["decode"]["replicas"] == {"min": 1}
    assert spec["decode"]["accelerator"] == {"resource": "nvidia.com/gpu"}
    assert spec["router"] == {"replicas": 2}
    assert spec["scaling"] == {"mode": "Auto", "scaleDownStabilization": "300s"}
    assert spec.keys() & {"maxGeneration", "hold", "maxGenerationSeconds", "holdSeconds"} == set()
    assert "prefill" not in dry_run(api, merged(TABLE["base"], {"spec": {"prefill": None}}))["spec"]


def test_engine_arguments_and_templates_are_kept_as_written(api: client.CustomObjectsApi) -> None:
    args = {"max-model-len": 2048, "gpu-memory-utilization": 0.9, "enforce-eager": True, "middleware": ["a", "b"]}
    template = {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "b"}]}]}}
    change = {"spec": {"engine": {"args": args}, "decode": {"template": template}}}
    spec = dry_run(api, merged(TABLE["base"], change))["spec"]
    assert spec["engine"]["args"] == args
    assert spec["decode"]["template"] == template


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["case"])
def test_a_bad_object_is_refused_with_what_to_write_instead(api: client.CustomObjectsApi, case: dict[str, Any]) -> None:
    message = refusal(api, merged(TABLE["base"], case["merge"]))
    assert case["message"].lower() in message.lower()
    assert "no such key" not in message
    assert "evaluation error" not in message


def test_every_argument_that_phasewise_sets_is_refused(api: client.CustomObjectsApi) -> None:
    reasons = [rule["message"] for rule in ENGINE_ARGS["x-kubernetes-validations"]]
    args = {name: schema.get("type") == "boolean" or "1" for name, schema in ENGINE_ARGS["properties"].items()}
    message = refusal(api, merged(TABLE["base"], {"spec": {"engine": {"args": args}}}))
    assert [reason for reason in reasons if reason not in message] == []


@pytest.mark.usefixtures("api")
def test_a_pool_scaler_can_be_scaled_and_not_given_another_pool() -> None:
    scaler: dict[str, Any] = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PoolScaler",
        "metadata": {"name": "dryrun-decode"},
        "spec": {"replicas": 1, "serviceRef": {"name": "dryrun"}, "role": "decode"},
    }
    resource = f"{COPY.lower()}poolscalers.{COPY_GROUP}/dryrun-decode"
    kubectl("create", "-n", "default", "-f", "-", text=yaml.safe_dump(copied(scaler)))
    kubectl("scale", resource, "--replicas=3", "-n", "default")
    assert kubectl("get", resource, "-n", "default", "-o", "jsonpath={.spec.replicas}") == "3"
    with pytest.raises(ClusterError, match="role cannot be changed: make a new object"):
        kubectl("patch", resource, "-n", "default", "--type=merge", "-p", '{"spec":{"role":"prefill"}}')


# --- the chart ---------------------------------------------------------------------------------------------

NAMESPACE = "phasewise-dryrun"


@pytest.fixture(scope="module")
def restricted() -> Iterator[str]:
    """A namespace that enforces the restricted Pod Security Standard, with the operator's ServiceAccount."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    try:
        kubectl("apply", "-f", "-", text=yaml.safe_dump(namespace))
        kubectl("apply", "-f", "-", text=yaml.safe_dump_all(chart("ServiceAccount")))
        yield NAMESPACE
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")


def chart(*kinds: str, values: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The chart's manifests, of these kinds or all."""
    given = [part for value in values for part in ("--set-json", value)]
    rendered = helm("template", "dryrun", str(ROOT / "charts/phasewise"), f"--namespace={NAMESPACE}", *given)
    manifests = [cast("dict[str, Any]", m) for m in yaml.safe_load_all(rendered) if m]
    for manifest in manifests:
        if manifest["kind"] in NAMESPACED:
            manifest["metadata"].setdefault("namespace", NAMESPACE)
    return [m for m in manifests if not kinds or m["kind"] in kinds]


NAMESPACED = {"ServiceAccount", "Deployment", "Service", "PodDisruptionBudget", "Role", "RoleBinding"}


@pytest.mark.usefixtures("restricted")
@pytest.mark.parametrize("values", [(), ('watchNamespaces=["default","kube-system"]',)], ids=["default", "namespaces"])
def test_the_charts_manifests_are_accepted(values: tuple[str, ...]) -> None:
    text = yaml.safe_dump_all(chart(values=values))
    kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-", text=text
    )


def test_the_operators_pod_is_allowed_where_pods_are_restricted(restricted: str) -> None:
    (deployment,) = chart("Deployment")
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": template["spec"]}
    kubectl("create", "-n", restricted, "--dry-run=server", "-f", "-", text=yaml.safe_dump(pod))
