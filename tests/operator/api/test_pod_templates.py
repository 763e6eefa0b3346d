"""The allow-list of pod templates: what Safe forbids, in the words of the API server, and what Full forbids too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.conftest import MakeContext

from phasewise_operator.api.pod_templates import (
    ADVICE,
    BY_ROLE,
    ENGINE_CONTAINER,
    ISOLATION_ANNOTATIONS,
    MAX_ENTRIES,
    METADATA,
    POD,
    SOURCES,
    VOLUME,
    policy,
    refusal,
)
from phasewise_operator.kinds import cluster_rules
from phasewise_operator.render.context import Permissions, RenderError
from phasewise_operator.render.engine import engine_template
from phasewise_operator.render.router import router_children

ROOT = Path(__file__).parents[3]
CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("pod_templates.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_safe_names_each_field_that_it_forbids(case: dict[str, Any]) -> None:
    role = case.get("role", "decode")
    message = refusal(role, case["template"])
    paths, _, advice = (message or f": {ADVICE}").partition(": ")
    found = paths.split(", ") if paths else []
    assert sorted(found) == sorted(f"spec.{role}.template.{field}" for field in case["forbidden"])
    assert advice == ADVICE


@pytest.mark.parametrize("role", BY_ROLE)
def test_a_new_field_of_kubernetes_is_forbidden_until_it_is_listed(role: str) -> None:
    template = {"spec": {"newField": 1, "containers": [{"name": "newcomer"}]}}
    at = f"spec.{role}.template.spec"
    assert refusal(role, template) == f"{at}.newField, {at}.containers[newcomer]: {ADVICE}"


def test_a_list_that_would_keep_the_api_server_busy_is_refused() -> None:
    env = [{"name": f"A{n}", "value": ""} for n in range(MAX_ENTRIES + 1)]
    at = "spec.decode.template.spec.containers[engine].env with more than 256 entries"
    assert refusal("decode", {"spec": {"containers": [{"name": "engine", "env": env}]}}) == f"{at}: {ADVICE}"
    assert refusal("decode", {"spec": {"containers": [{"name": "engine", "env": env[1:]}]}}) is None
    many = dict.fromkeys(map(str, range(MAX_ENTRIES + 1)), "")
    for template in ({"spec": many}, {"metadata": {"annotations": many}}):
        assert (refusal("decode", template) or "").startswith("spec.decode.template.")
        assert " with more than 256 entries: " in (refusal("decode", template) or "")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_safe(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        for role in BY_ROLE.keys() & manifest["spec"].keys():
            assert refusal(role, manifest["spec"][role].get("template", {})) is None


def test_the_policy_says_the_same_words() -> None:
    (validation,) = policy()["validations"]
    assert f": {ADVICE}'" in validation["messageExpression"]
    assert [variable["name"] for variable in policy()["variables"]] == list(BY_ROLE)


def render(ctx_of: MakeContext, role: str, template: dict[str, Any], safe: bool) -> None:
    """Render the pods of a role; raises RenderError."""
    changes = {role: {"template": template}}
    ctx = ctx_of(permissions=Permissions(safe_templates=safe), **changes)
    if role == "router":
        router_children(ctx)
    else:
        engine_template(ctx, role)


def test_the_operator_refuses_what_safe_forbids_and_full_renders_it(make_context: MakeContext) -> None:
    template = {"spec": {"hostNetwork": True}}
    with pytest.raises(
        RenderError, match=r"^spec\.decode\.template\.spec\.hostNetwork: unknown, or not allowed .* podTemplates Full"
    ):
        render(make_context, "decode", template, safe=True)
    with pytest.raises(RenderError, match=r"^spec\.router\.template\.spec\.hostNetwork: unknown, or not allowed"):
        render(make_context, "router", template, safe=True)
    render(make_context, "decode", template, safe=False)
    render(make_context, "router", template, safe=False)


def mounted_at(path: str) -> dict[str, Any]:
    return {"containers": [{"name": "engine", "volumeMounts": [{"name": "mine", "mountPath": path}]}]}


REFUSED_IN_FULL: list[tuple[str, dict[str, Any], str]] = [
    (
        "decode",
        {"initContainers": [{"name": "launcher", "image": "mine"}]},
        "initContainers[launcher].image is Phasewise's",
    ),
    ("decode", {"initContainers": [{"name": "launcher", "command": ["true"]}]}, "initContainers[launcher].command is"),
    ("decode", {"initContainers": [{"name": "launcher", "args": []}]}, "initContainers[launcher].args is Phasewise's"),
    ("decode", {"volumes": [{"name": "launcher", "hostPath": {"path": "/"}}]}, "volumes[launcher] is Phasewise's"),
    *(
        ("decode", mounted_at(path), f"containers[engine].volumeMounts[{path}] is Phasewise's")
        for path in ("/phasewise", "/phasewise/", "phasewise", "//x/../phasewise", "/phasewise/launcher.pyz")
    ),
    ("decode", {"terminationGracePeriodSeconds": 1}, "requests that run need more time than 1: leave it out, or write"),
    ("prefill", {"terminationGracePeriodSeconds": None}, "terminationGracePeriodSeconds: requests that run need more"),
    ("router", {"terminationGracePeriodSeconds": 614}, "leave it out, or write 615 or more"),
    ("router", {"containers": [{"name": "router", "image": "mine"}]}, "the chart's runtimeImage names the image"),
]


@pytest.mark.parametrize(("role", "spec", "message"), REFUSED_IN_FULL, ids=lambda value: str(value)[:40])
def test_full_refuses_what_breaks_the_pods_contract(
    role: str, spec: dict[str, Any], message: str, make_context: MakeContext
) -> None:
    with pytest.raises(RenderError) as refused:
        render(make_context, role, {"spec": spec}, safe=False)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"spec.{role}.template.spec.")


@pytest.mark.parametrize(
    ("role", "spec"),
    [
        ("decode", {"terminationGracePeriodSeconds": 10_000}),
        ("decode", {"initContainers": [{"name": "launcher", "resources": {}}, {"name": "mine", "image": "busybox"}]}),
        ("decode", {"containers": [{"name": "engine", "image": "mine"}]}),
        ("decode", mounted_at("/phasewise-cache")),
        ("router", {"terminationGracePeriodSeconds": 615}),
    ],
)
def test_full_allows_the_rest(role: str, spec: dict[str, Any], make_context: MakeContext) -> None:
    render(make_context, role, {"spec": spec}, safe=False)


DOCS = (ROOT / "docs/security.md").read_text()


def test_the_docs_list_what_safe_allows_and_no_more() -> None:
    table = DOCS[DOCS.index("| where | fields |") : DOCS.index("All else is refused")]
    named = set(re.findall(r"`([A-Za-z./0-9-]+)`", table)) - {"spec.volumes", "metadata", "spec", "engine", "router"}
    fields = {*METADATA.rules, *POD, *VOLUME.rules, *ENGINE_CONTAINER.rules, *SOURCES.rules, *ISOLATION_ANNOTATIONS}
    assert named == fields - {"name"} | {"value", "valueFrom", "prefix", "configMapRef"}


def test_the_docs_examples_are_safe() -> None:
    examples = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)]
    pools = [(role, pool) for example in examples for role, pool in example["spec"].items() if role in BY_ROLE]
    assert len(pools) == 3
    assert [refusal(role, pool["template"]) for role, pool in pools] == [None] * 3


def test_the_docs_say_what_each_right_of_the_operator_is_for() -> None:
    resources = {resource.partition("/")[0] for rule in cluster_rules() for resource in rule["resources"]}
    assert [resource for resource in sorted(resources) if f"`{resource}`" not in DOCS] == []
