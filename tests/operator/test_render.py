"""Builders: what is rendered for which spec. Whole GPU pods are kept as golden files beside this test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from phasewise_operator import render
from phasewise_operator.kinds import Manifest
from phasewise_operator.render.context import Context, RenderError
from phasewise_operator.render.engine import engine_deployment, engine_template, label_value
from phasewise_runtime import contract
from phasewise_runtime.engine.config import EngineConfig

MakeContext = Callable[..., Context]

GOLDEN = Path(__file__).parent / "golden"
GPU: dict[str, Any] = {"accelerator": {"nodeSelector": {"gpu": "h100"}}}
SHAPES: dict[str, dict[str, Any]] = {
    "gpu-tp1": {"prefill": GPU, "decode": GPU},
    "gpu-tp4": {
        "prefill": {**GPU, "parallelism": {"tensor": 4}, "resources": {"requests": {"cpu": 8, "memory": "64Gi"}}},
        "decode": {**GPU, "parallelism": {"tensor": 4}},
        "model": {"uri": "hf://org/llama-70b@v1", "secretRef": {"name": "hf-token"}},
    },
    "gpu-aggregated": {"prefill": None, "decode": GPU, "model": {"uri": "pvc://weights/llama"}},
    "cpu": {"model": {"uri": "file:///opt/models/tiny"}},
}


def children(ctx: Any) -> list[Manifest]:
    engines = [engine_deployment(ctx, engine_template(ctx, role), 1, 1) for role in ctx.pools]
    return [*render.constant_children(ctx), *engines]


@pytest.mark.parametrize("shape", SHAPES)
def test_golden_children(shape: str, make_context: MakeContext) -> None:
    """Set PHASEWISE_UPDATE_GOLDEN=1 to write the files anew, and read the difference before committing it."""
    rendered = yaml.safe_dump_all(children(make_context(**SHAPES[shape])), sort_keys=True)
    path = GOLDEN / f"{shape}.yaml"
    if os.environ.get("PHASEWISE_UPDATE_GOLDEN"):
        path.write_text(rendered)
    assert rendered == path.read_text()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_child_is_ours_by_label_and_owner(shape: str, make_context: MakeContext) -> None:
    for child in children(make_context(**SHAPES[shape])):
        meta = child["metadata"]
        assert meta["labels"][contract.LABEL_MANAGED_BY] == contract.MANAGED_BY
        assert meta["labels"][contract.LABEL_SERVICE] == "chat"
        assert meta["ownerReferences"][0]["uid"] == "uid-chat"
        assert meta["annotations"][contract.ANNOTATION_INTENT]
        assert len(meta["name"]) <= 63


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


def revision_and_fingerprint(ctx: Any, role: str = "decode") -> tuple[str, str]:
    engine = engine_template(ctx, role)
    return engine.revision, engine.fingerprint


CHANGES: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("replicas", {"decode": {"replicas": {"min": 3, "max": 4}}}, False, False),
    ("targets", {"slo": {"ttft": "1s", "itl": "80ms"}}, False, False),
    ("router", {"router": {"replicas": 5}}, False, False),
    ("resources", {"decode": {"resources": {"requests": {"cpu": 2}}}}, True, False),
    ("pod annotation", {"decode": {"template": {"metadata": {"annotations": {"a": "b"}}}}}, True, False),
    ("engine image", {"engine": {"image": "vllm/vllm-openai:v0.33.0"}}, True, True),
    ("weights", {"model": {"uri": "hf://org/llama@v2", "name": "llama"}}, True, True),
    ("kv dtype", {"engine": {"args": {"kv-cache-dtype": "fp8"}}}, True, True),
    ("rope, by its dotted name", {"engine": {"args": {"hf-overrides.rope_theta": 1}}}, True, True),
    ("an argument we do not know", {"engine": {"args": {"some-new-kv-setting": 1}}}, True, True),
    ("scheduling argument", {"engine": {"args": {"max-num-seqs": 8}}}, True, False),
    ("layout from the environment", {"decode": {"template": {"spec": {"containers": [
        {"name": "engine", "env": [{"name": "VLLM_KV_CACHE_LAYOUT", "value": "HND"}]}]}}}}, True, True),
]  # fmt: skip


@pytest.mark.parametrize(("what", "change", "new_revision", "new_fingerprint"), CHANGES, ids=[c[0] for c in CHANGES])
def test_what_makes_a_revision_and_what_a_fingerprint(
    what: str, change: dict[str, Any], new_revision: bool, new_fingerprint: bool, make_context: MakeContext
) -> None:
    before, after = revision_and_fingerprint(make_context()), revision_and_fingerprint(make_context(**change))
    assert (before[0] != after[0]) is new_revision
    assert (before[1] != after[1]) is new_fingerprint


def test_both_roles_read_each_others_kv_though_their_sizes_differ(make_context: MakeContext) -> None:
    ctx = make_context(prefill={**GPU, "parallelism": {"tensor": 4}}, decode=GPU)
    assert engine_template(ctx, "prefill").fingerprint == engine_template(ctx, "decode").fingerprint


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
def test_what_only_phasewise_sets_is_refused(template: dict[str, Any], message: str, make_context: MakeContext) -> None:
    with pytest.raises(RenderError, match=message):
        engine_template(make_context(decode={"template": template}), "decode")


@pytest.mark.parametrize(
    ("name", "label"),
    [("llama-3.1", "llama-3.1"), ("org/model:x", "org-model-x"), ("é" * 3 + "a", "a"), ("x" * 80, "x" * 63)],
)
def test_a_model_name_becomes_a_label(name: str, label: str) -> None:
    assert label_value(name) == label
