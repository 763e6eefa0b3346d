"""The generated CRDs: up to date, complete for `kubectl explain`, and of the shape that was promised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from phasewise_operator.api import crd

ROOT = Path(__file__).parents[3]


def schema_of(resource: crd.Resource) -> dict[str, Any]:
    return crd.manifest(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    if isinstance(items := schema.get("items"), dict):
        yield from fields(items, f"{path}[]")


def test_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", "--root", str(ROOT)]) == 0, capsys.readouterr().err


def test_check_names_each_stale_file_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", "--root", str(tmp_path)]) == 1
    assert "crds/inferenceservices.yaml differs from its source: run `make crds`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_writing_makes_check_pass_and_a_second_run_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crd.main(["--root", str(tmp_path)]) == 0
    assert crd.main(["--check", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert crd.main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("path", [p for p in crd.files() if p.startswith("crds/")])
def test_a_crd_stays_below_what_client_side_apply_can_carry(path: str) -> None:
    assert len(crd.files()[path].encode()) < crd.MAX_BYTES


@pytest.mark.parametrize("path", [p for p in crd.files() if p.startswith("charts/phasewise/templates/crds/")])
def test_the_charts_copy_differs_in_its_frame_only(path: str) -> None:
    chart = crd.files()[path]
    plain = yaml.safe_load(crd.files()[f"crds/{Path(path).name}"])
    spec = yaml.safe_load("spec:" + chart.split("\nspec:", 1)[1].removesuffix("{{- end }}\n"))
    assert spec["spec"] == plain["spec"]


@pytest.mark.parametrize("resource", crd.RESOURCES, ids=lambda resource: resource.kind)
def test_every_field_is_described(resource: crd.Resource) -> None:
    bare = [path for path, schema in fields(schema_of(resource)) if not schema.get("description")]
    assert bare == [".metadata"]


@pytest.mark.parametrize("resource", crd.RESOURCES, ids=lambda resource: resource.kind)
def test_every_column_shows_a_field_that_exists(resource: crd.Resource) -> None:
    known = {path for path, _ in fields(schema_of(resource))} | {".metadata.creationTimestamp"}
    shown = {column.path.replace('[?(@.type=="Ready")]', "[]") for column in resource.columns}
    assert shown - known == set()


def test_the_columns_of_a_service() -> None:
    names = [column.name.upper() for column in crd.INFERENCE_SERVICE.columns]
    assert names == ["MODEL", "PREFILL", "DECODE", "TTFT", "ITL", "READY", "REASON", "SINCE", "URL", "AGE", "MESSAGE"]
    assert [column.name for column in crd.INFERENCE_SERVICE.columns if column.wide] == ["Since", "URL", "Message"]


def test_explain_says_what_decode_does_without_prefill() -> None:
    spec = schema_of(crd.INFERENCE_SERVICE)["properties"]["spec"]["properties"]
    assert "both phases: they also compute the prompts, in chunks (chunked prefill)" in spec["decode"]["description"]
    assert "decode replicas do both phases" in spec["prefill"]["description"]


def test_a_pull_secret_is_named_once() -> None:
    secrets = schema_of(crd.INFERENCE_SERVICE)["properties"]["spec"]["properties"]["imagePullSecrets"]
    assert (secrets["x-kubernetes-list-type"], secrets["x-kubernetes-list-map-keys"]) == ("map", ["name"])


def test_prefill_has_no_default_so_that_it_can_be_left_out() -> None:
    spec = schema_of(crd.INFERENCE_SERVICE)["properties"]["spec"]
    assert "default" not in spec["properties"]["prefill"]
    assert spec["required"] == ["model", "slo", "decode"]


def test_defaults_of_objects_are_complete_because_rules_read_their_fields() -> None:
    spec = schema_of(crd.INFERENCE_SERVICE)["properties"]["spec"]["properties"]
    pool = spec["decode"]["properties"]
    assert pool["replicas"]["default"] == {"min": 1}
    assert pool["parallelism"]["default"] == {"tensor": 1, "pipeline": 1}
    assert spec["engine"]["default"] == {"type": "vllm"}
    assert spec["router"]["default"] == {"replicas": 2}
    assert spec["scaling"]["default"] == {"mode": "Auto", "scaleDownStabilization": "300s"}


def test_a_new_service_is_not_current_before_the_operator_has_seen_it() -> None:
    """kstatus compares observedGeneration with the generation; without a status it takes an object for reconciled."""
    status = crd.manifest(crd.INFERENCE_SERVICE)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
        "status"
    ]
    assert status["default"] == {"observedGeneration": -1}
    assert status["properties"]["observedGeneration"]["minimum"] == -1


def test_names_and_subresources() -> None:
    service, scaler = (crd.manifest(resource)["spec"] for resource in crd.RESOURCES)
    assert (service["names"]["plural"], service["names"]["shortNames"]) == ("inferenceservices", ["infsvc"])
    assert (scaler["names"]["plural"], scaler["names"]["shortNames"]) == ("poolscalers", ["pscale"])
    assert service["versions"][0]["subresources"] == {"status": {}}
    assert scaler["versions"][0]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_a_description_that_helm_would_evaluate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crd, "RESOURCES", (crd.Resource("A", "as", "a", "{{ x }}", *_models(), columns=()),))
    with pytest.raises(ValueError, match="which Helm would evaluate"):
        crd.files()


def _models() -> tuple[Any, Any]:
    return crd.POOL_SCALER.spec, crd.POOL_SCALER.status
