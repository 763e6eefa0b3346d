"""Builders: what is rendered for which spec. All children of four specs are kept as golden files beside this test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.conftest import MakeContext
from tests.operator.golden_specs import SHAPES

from phasewise_operator.kinds import Manifest
from phasewise_operator.render import children as render_children
from phasewise_operator.render.children import constant_children, stamp
from phasewise_operator.render.context import Context, RenderError
from phasewise_operator.render.engine import engine_deployment, engine_template, label_value
from phasewise_runtime import contract
from phasewise_runtime.engine.config import EngineConfig
from phasewise_runtime.router.pods import pod_from_api

GOLDEN = Path(__file__).parent / "golden"
COMMON = "common"


def children(ctx: Any) -> list[Manifest]:
    engines = [engine_deployment(ctx, engine_template(ctx, role), 1, 1) for role in ctx.pools]
    return stamp(ctx, [*constant_children(ctx), *engines])


@pytest.mark.parametrize("name", [COMMON, *SHAPES])
def test_golden_children(name: str, make_context: MakeContext) -> None:
    """Set PHASEWISE_UPDATE_GOLDEN=1 to write the files anew, and read the difference before committing it."""
    documents = golden_documents({shape: children(make_context(**SHAPES[shape])) for shape in SHAPES})
    text = yaml.safe_dump_all(documents[name], sort_keys=True)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("PHASEWISE_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("engine", "pool", "device"),
    [
        ({}, {}, "cpu"),
        ({}, {"accelerator": {}}, "gpu"),
        ({"device": "cpu"}, {"accelerator": {"resource": "example.com/slot"}}, "cpu"),
        ({"device": "gpu"}, {"accelerator": {}}, "gpu"),
    ],
)
def test_an_accelerator_means_a_gpu_unless_the_engine_says_otherwise(
    engine: Any, pool: Any, device: str, make_context: MakeContext
) -> None:
    ctx = make_context(engine=engine, prefill=pool, decode=pool)
    container = engine_template(ctx, contract.DECODE).template["spec"]["containers"][0]
    assert EngineConfig.from_json(container["env"][0]["value"]).device == device
    limits = container.get("resources", {}).get("limits", {})
    assert list(limits.values()) == (["1"] if pool else [])


def golden_documents(rendered: dict[str, list[Manifest]]) -> dict[str, list[Manifest]]:
    """What is in each file: a child of two or more specs stands in common.yaml, and in theirs only its name."""
    rendered = {shape: [without_copy(child) for child in found] for shape, found in rendered.items()}
    seen = [child for shape in rendered.values() for child in shape]
    common = {reference(child): child for child in seen if seen.count(child) > 1}
    own = {
        shape: [{"common": reference(c)} if common.get(reference(c)) == c else c for c in found]
        for shape, found in rendered.items()
    }
    return {COMMON: list(common.values()), **own}


def without_copy(child: Manifest) -> Manifest:
    """The pod template stands in an annotation of engine Deployments once more."""
    annotations = dict(child["metadata"]["annotations"])
    if contract.ANNOTATION_TEMPLATE in annotations:
        assert json.loads(annotations[contract.ANNOTATION_TEMPLATE]) == child["spec"]["template"]
        annotations[contract.ANNOTATION_TEMPLATE] = "spec.template as JSON"
    return {**child, "metadata": {**child["metadata"], "annotations": annotations}}


def reference(child: Manifest) -> str:
    return f"{child['kind']}/{child['metadata']['name']}"


@pytest.mark.parametrize("shape", SHAPES)
def test_every_child_is_ours_by_label_and_owner(shape: str, make_context: MakeContext) -> None:
    for child in children(make_context(**SHAPES[shape])):
        meta = child["metadata"]
        assert meta["labels"][contract.LABEL_MANAGED_BY] == contract.MANAGED_BY
        assert meta["labels"][contract.LABEL_SERVICE] == "chat"
        assert meta["ownerReferences"][0]["uid"] == "uid-chat"
        assert meta["annotations"][contract.ANNOTATION_INTENT]
        assert len(meta["name"]) <= 63


def test_a_child_has_a_role_only_where_it_belongs_to_one(make_context: MakeContext) -> None:
    """The ServiceAccount of the engines is that of both roles."""
    found = children(make_context())
    roles = {reference(c): c["metadata"]["labels"].get(contract.LABEL_ROLE) for c in found}
    assert roles["ServiceAccount/chat-engine"] is None
    assert roles["PodDisruptionBudget/chat-prefill"] == "prefill"
    assert {roles[f"{kind}/chat-router"] for kind in ("Deployment", "ServiceAccount")} == {"router"}
    for child in found:
        assert child["metadata"]["labels"].get(contract.LABEL_COMPONENT) == roles[reference(child)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_child_that_is_stamped_again_is_the_same(shape: str, make_context: MakeContext) -> None:
    """An old revision is read back and applied again at each pass."""
    ctx = make_context(**SHAPES[shape])
    assert stamp(ctx, children(ctx)) == children(ctx)


def test_a_label_of_all_children_changes_no_pod_template(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = make_context()
    before, labels = children(ctx), render_children.child_labels
    monkeypatch.setattr(render_children, "child_labels", lambda ctx: {**labels(ctx), "team": "a"})
    after = children(ctx)
    assert {child["metadata"]["labels"]["team"] for child in after} == {"a"}
    assert [reference(c) for c in after] == [reference(c) for c in before]
    assert [c.get("spec") for c in after] == [c.get("spec") for c in before]
    intents = [{c["metadata"]["annotations"][contract.ANNOTATION_INTENT] for c in each} for each in (before, after)]
    assert intents[0].isdisjoint(intents[1]), "every child is written again"


@pytest.mark.parametrize("shape", SHAPES)
def test_pods_meet_the_restricted_standard(shape: str, make_context: MakeContext) -> None:
    for child in children(make_context(**SHAPES[shape])):
        if child["kind"] != "Deployment":
            continue
        pod = child["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_a_secret_is_mounted_and_never_in_the_environment(make_context: MakeContext) -> None:
    ctx = make_context(
        model={"uri": "hf://org/llama", "secretRef": {"name": "hf-token"}},
        router={"apiKeys": {"secretRef": {"name": "keys"}}},
    )
    for child in children(ctx):
        text = json.dumps(child)
        assert "secretKeyRef" not in text
        assert "envFrom" not in text
    engine = engine_template(ctx, "decode").template["spec"]
    assert {"name": "model-secret", "secret": {"secretName": "hf-token", "defaultMode": 0o440}} in engine["volumes"]
    config = EngineConfig.from_json(engine["containers"][0]["env"][0]["value"])
    assert config.secrets_dir == "/var/run/secrets/phasewise/model"


def test_grace_covers_the_longest_generation(make_context: MakeContext) -> None:
    pod = engine_template(make_context(maxGeneration="15m"), "decode").template["spec"]
    assert pod["terminationGracePeriodSeconds"] > 900 + 30


def test_a_template_is_merged_by_name(make_context: MakeContext) -> None:
    container = {"name": "engine", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}
    extra = {"name": "rdma", "hostPath": {"path": "/dev/infiniband"}}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container], "volumes": [extra]}}
    rendered = engine_template(make_context(decode={"template": template}), "decode").template
    env = [e["name"] for e in rendered["spec"]["containers"][0]["env"]]
    assert contract.ENV_ENGINE_CONFIG in env
    assert "NCCL_DEBUG" in env
    assert [v["name"] for v in rendered["spec"]["volumes"]][-1] == "rdma"
    assert rendered["metadata"]["labels"]["team"] == "a"


POD_IP = {"name": "POD_NAME", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 5}


def test_where_only_one_source_may_be_set_that_of_the_user_replaces_ours(make_context: MakeContext) -> None:
    """A PersistentVolumeClaim keeps the weights of an hf:// model over the lives of pods."""
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": "weights"}}
    container = {"name": "engine", "env": [{"name": "HOME", "valueFrom": POD_IP["valueFrom"]}, POD_IP]}
    spec = {"volumes": [claim], "containers": [{**container, "livenessProbe": PROBE}]}
    ctx = make_context(model={"uri": "hf://a/b"}, decode={"template": {"spec": spec}})
    rendered = engine_template(ctx, "decode").template["spec"]
    assert claim in rendered["volumes"]
    env = {e["name"]: e for e in rendered["containers"][0]["env"]}
    assert (env["HOME"], env["POD_NAME"]) == (container["env"][0], POD_IP)
    ours = engine_template(make_context(), "decode").template["spec"]["containers"][0]["livenessProbe"]
    kept = {key: value for key, value in ours.items() if key != "httpGet"}
    assert rendered["containers"][0]["livenessProbe"] == {**kept, **PROBE}


def test_the_same_source_with_other_options_is_merged(make_context: MakeContext) -> None:
    template = {"spec": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]}}
    rendered = engine_template(make_context(decode={"template": template}), "decode").template["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in rendered["volumes"]


def engine_variable(ctx: Context) -> str:
    (container,) = engine_template(ctx, "decode").template["spec"]["containers"]
    return next(e["value"] for e in container["env"] if e["name"] == contract.ENV_ENGINE_CONFIG)


@pytest.mark.parametrize("text", ["$$", "$(HOME)", "$", "a$$(POD_IP)b", "$$$(X)"])
def test_dollars_in_arguments_reach_the_engine_as_written(make_context: MakeContext, text: str) -> None:
    """Kubernetes puts variables in place of $(NAME), and $ in place of $$, in the value of a variable."""
    variable = engine_variable(make_context(engine={"args": {"chat-template": text}}))
    assert "$(" not in variable.replace("$$", "")
    assert EngineConfig.from_json(variable.replace("$$", "$")).args == {"chat-template": text}


def test_arguments_that_fit_in_no_environment_variable_are_refused(make_context: MakeContext) -> None:
    long = "x" * 119 * 2**10
    assert len(engine_variable(make_context(engine={"args": {"chat-template": long}}))) < 128 * 2**10
    with pytest.raises(RenderError, match=r"spec.engine.args: 13\d,\d{3} bytes together, and at most 122,880 fit"):
        engine_template(
            make_context(engine={"args": {"middleware": "y" * 12 * 2**10, "chat-template": long}}), "decode"
        )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"containers": [{"name": "engine", "command": ["vllm"]}]}}, "spec.engine.args"),
    ({"spec": {"containers": [{"name": "engine", "args": ["--x"]}]}}, "spec.engine.args"),
    (
        {"spec": {"containers": [{"name": "engine", "env": [{"name": "PHASEWISE_ENGINE", "value": ""}]}]}},
        "leave it out",
    ),
    ({"metadata": {"labels": {"phasewise.dev/role": "prefill"}}}, "leave it out"),
    ({"spec": {"containers": [{"image": "x"}]}}, "needs 'name'"),
    ({"spec": {"containers": [{"name": ["x"]}]}}, "needs 'name'"),
    ({"spec": {"containers": None}}, "must be a list"),
    ({"spec": {"containers": {"name": "engine"}}}, "must be a list"),
    ({"spec": {"containers": [{"name": "engine", "env": None}]}}, "must be a list"),
    ({"spec": {"containers": [{"name": "engine", "env": ["A=B"]}]}}, "must be a mapping"),
    ({"spec": {"securityContext": "none"}}, "must be a mapping"),
]


@pytest.mark.parametrize(("template", "message"), REFUSED)
def test_fields_that_only_phasewise_sets_are_refused(
    template: dict[str, Any], message: str, make_context: MakeContext
) -> None:
    with pytest.raises(RenderError, match=message):
        engine_template(make_context(decode={"template": template}), "decode")


@pytest.mark.parametrize(
    ("name", "label"),
    [("llama-3.1", "llama-3.1"), ("org/model:x", "org-model-x"), ("é" * 3 + "a", "a"), ("x" * 80, "x" * 63)],
)
def test_a_model_name_becomes_a_label(name: str, label: str) -> None:
    assert label_value(name) == label


@pytest.mark.parametrize("name", ["llama-3.1", "org/model:x"])
def test_routers_learn_from_a_pod_what_its_engine_serves(name: str, make_context: MakeContext) -> None:
    """From its launcher's configuration, which the pods of every version have: there is no annotation for it."""
    for shape, aggregated in (("gpu-tp4", False), ("gpu-aggregated", True)):
        model, engine = {"uri": "hf://org/llama", "name": name}, {"args": {"chat-template": '$(A) $$ "$'}}
        ctx = make_context(**{**SHAPES[shape], "model": model, "engine": engine})
        template = engine_template(ctx, "decode").template
        pod = pod_from_api({**template, "metadata": {**template["metadata"], "uid": "u"}})
        assert pod is not None
        assert (pod.model, pod.aggregated, pod.gpus) == (name, aggregated, 1 if aggregated else 4)


def test_a_change_between_one_pool_and_two_does_not_restart_the_routers(make_context: MakeContext) -> None:
    """They see from the pods which of them are to be paired, while pods of both kinds run."""
    paired, aggregated = (children(make_context(prefill=prefill)) for prefill in ({}, None))
    assert router_of(paired) == router_of(aggregated)


def router_of(manifests: list[Manifest]) -> Manifest:
    name = ("Deployment", "chat-router")
    return next(m for m in manifests if (m["kind"], m["metadata"]["name"]) == name)
