"""Every rule is tried: the table of refused objects reaches each message, and its base is valid.

CEL itself is evaluated by the API server, in e2e/test_crds.py, from the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from phasewise_operator.api import InferenceServiceSpec, crd, rules
from phasewise_runtime.engine.arguments import OWNED

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def rules_in(schema: Any) -> Iterator[dict[str, str]]:
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        for child in schema.values():
            yield from rules_in(child)


SERVICE_SCHEMA = crd.manifest(crd.INFERENCE_SERVICE)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_every_message_of_a_rule_has_a_case() -> None:
    tried = [case["message"] for case in TABLE["cases"]]
    messages = {rule["message"] for rule in rules_in(SERVICE_SCHEMA)} - {rule.message for rule in rules.ENGINE_ARGS}
    untried = {message for message in messages if not any(part in message for part in tried)}
    assert untried == set()


@pytest.mark.parametrize("resource", crd.RESOURCES, ids=lambda resource: resource.kind)
def test_rules_have_the_form_that_the_api_server_accepts(resource: crd.Resource) -> None:
    for rule in rules_in(crd.manifest(resource)):
        assert rule["message"].strip() == rule["message"]
        assert "\n" not in rule["message"], "the API server refuses a message of several lines"
        assert rule.get("fieldPath", ".").startswith("."), "a field path is relative to the rule's schema"


def test_every_argument_that_phasewise_owns_is_declared_so_that_cel_can_see_it() -> None:
    args = SERVICE_SCHEMA["properties"]["spec"]["properties"]["engine"]["properties"]["args"]
    assert args["properties"].keys() == OWNED.keys()
    assert len(args["x-kubernetes-validations"]) == len(OWNED)


@pytest.mark.parametrize("name", OWNED)
def test_an_owned_argument_is_refused_by_its_own_reason(name: str) -> None:
    args = SERVICE_SCHEMA["properties"]["spec"]["properties"]["engine"]["properties"]["args"]
    rule = {
        "rule": f"!has(self.{name.replace('-', '__dash__')})",
        "message": f"engine.args cannot have {name}: {OWNED[name]}",
    }
    assert rule in args["x-kubernetes-validations"]


def test_the_base_of_the_table_is_valid() -> None:
    InferenceServiceSpec.model_validate(TABLE["base"]["spec"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_models(path: Path) -> None:
    services = [d for d in yaml.safe_load_all(path.read_text()) if d["kind"] == crd.INFERENCE_SERVICE.kind]
    assert services, f"{path.name} has no InferenceService"
    for service in services:
        InferenceServiceSpec.model_validate(service["spec"])
