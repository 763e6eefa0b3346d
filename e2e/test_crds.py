"""The API server is the judge: it takes the CRDs and every example, and refuses bad objects with our messages.

Objects are tried on a copy of the CRDs under another group and other names, so that this neither needs an installed
chart nor touches what one owns, and no name of the copy gets in the way of `kubectl get infsvc`.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[1]
GROUP, COPY_GROUP, COPY = "phasewise.dev", "dryrun.phasewise.dev", "DryRun"
CRDS = sorted((ROOT / "crds").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
TABLE: dict[str, Any] = yaml.safe_load((ROOT / "tests/operator/api/refused.yaml").read_text())


def kubectl(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "e2e.cluster", "kubectl", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )


def copied(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same CRD or object under the copy's group and names; an object of another group as it is."""
    if manifest["kind"] == "CustomResourceDefinition":
        return copied_crd(manifest)
    if not manifest["apiVersion"].startswith(f"{GROUP}/"):
        return manifest
    return manifest | {"apiVersion": f"{COPY_GROUP}/v1alpha1", "kind": COPY + manifest["kind"]}


def copied_crd(manifest: dict[str, Any]) -> dict[str, Any]:
    names = manifest["spec"]["names"]
    kinds = {key: COPY + names[key] for key in ("kind", "listKind")}
    words = {key: COPY.lower() + names[key] for key in ("plural", "singular")}
    name = f"{words['plural']}.{COPY_GROUP}"
    return manifest | {
        "metadata": {"name": name},
        "spec": manifest["spec"] | {"group": COPY_GROUP, "names": kinds | words},
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
        applied = kubectl("apply", "--server-side", "-f", "-", stdin=crds)
        assert applied.returncode == 0, applied.stderr
        waited = kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
        assert waited.returncode == 0, waited.stderr
        view = kubectl("config", "view", "--raw", "--minify", "-o", "json")
        assert view.returncode == 0, view.stderr
        yield client.CustomObjectsApi(config.new_client_from_config_dict(json.loads(view.stdout)))
    finally:
        kubectl("delete", "--ignore-not-found", *names)


def create(api: client.CustomObjectsApi, body: dict[str, Any], *, dry_run: bool = True) -> dict[str, Any]:
    return api.create_namespaced_custom_object(
        COPY_GROUP,
        "v1alpha1",
        "default",
        f"{COPY}{body['kind']}s".lower(),
        copied(body),
        field_validation="Strict",
        **({"dry_run": "All"} if dry_run else {}),
    )


def refusal(api: client.CustomObjectsApi, body: dict[str, Any]) -> str:
    """The message with which the API server refuses an object."""
    with pytest.raises(ApiException) as refused:
        create(api, body)
    return json.loads(refused.value.body)["message"]


def established_without_complaint(crd: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    return conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.stem)
def test_the_api_server_takes_the_crd(path: Path) -> None:
    done = kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(path))
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.stem)
def test_the_schema_is_structural(path: Path) -> None:
    crd = json.loads(kubectl("get", crd_name(path), "-o", "json").stdout)
    assert established_without_complaint(crd), crd["status"]["conditions"]


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted(path: Path) -> None:
    done = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=copies(path))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_the_base_of_the_table_is_accepted_with_the_documented_defaults(api: client.CustomObjectsApi) -> None:
    spec = create(api, TABLE["base"])["spec"]
    assert spec["decode"]["replicas"] == {"min": 1}
    assert spec["decode"]["accelerator"] == {"resource": "nvidia.com/gpu"}
    assert spec["router"] == {"replicas": 2}
    assert spec["scaling"] == {"mode": "Auto", "scaleDownStabilization": "300s"}
    assert "prefill" not in create(api, merged(TABLE["base"], {"spec": {"prefill": None}}))["spec"]


def test_engine_arguments_and_templates_are_kept_as_written(api: client.CustomObjectsApi) -> None:
    args = {"max-model-len": 2048, "gpu-memory-utilization": 0.9, "enforce-eager": True, "middleware": ["a", "b"]}
    template = {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "b"}]}]}}
    change = {"spec": {"engine": {"args": args}, "decode": {"template": template}}}
    spec = create(api, merged(TABLE["base"], change))["spec"]
    assert spec["engine"]["args"] == args
    assert spec["decode"]["template"] == template


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["case"])
def test_a_bad_object_is_refused_with_what_to_write_instead(api: client.CustomObjectsApi, case: dict[str, Any]) -> None:
    message = refusal(api, merged(TABLE["base"], case["merge"]))
    assert case["message"].lower() in message.lower()
    assert "no such key" not in message
    assert "evaluation error" not in message


def test_a_pool_scaler_is_scaled_and_keeps_its_pool(api: client.CustomObjectsApi) -> None:
    scaler: dict[str, Any] = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PoolScaler",
        "metadata": {"name": "dryrun-decode"},
        "spec": {"replicas": 1, "serviceRef": {"name": "dryrun"}, "role": "decode"},
    }
    resource = f"{COPY.lower()}poolscalers.{COPY_GROUP}/dryrun-decode"
    create(api, scaler, dry_run=False)
    scaled = kubectl("scale", resource, "--replicas=3", "-n", "default")
    assert scaled.returncode == 0, scaled.stderr
    assert kubectl("get", resource, "-n", "default", "-o", "jsonpath={.spec.replicas}").stdout == "3"
    moved = kubectl("patch", resource, "-n", "default", "--type=merge", "-p", '{"spec":{"role":"prefill"}}')
    assert "role cannot be changed: make a new object" in moved.stderr
