"""Which change of a spec makes a new revision, which a new KV fingerprint, and which neither."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import Field
from tests.operator.conftest import MakeContext
from tests.operator.golden_specs import GPU, SHAPES

from phasewise_operator.api.pool import Parallelism
from phasewise_operator.render import engine
from phasewise_operator.render.engine import engine_template
from phasewise_runtime.engine.config import EngineConfig


def revision_and_fingerprint(ctx: Any, role: str = "decode") -> tuple[str, str]:
    engine = engine_template(ctx, role)
    return engine.revision, engine.fingerprint


REVISIONS = {
    "gpu-tp1": {"prefill": "0177afbd6a", "decode": "9097004e9e"},
    "gpu-tp4": {"prefill": "c54c7f837e", "decode": "e5661aea5d"},
    "gpu-aggregated": {"decode": "e3694725f6"},
    "cpu": {"prefill": "f3e0f4f413", "decode": "420895f3de"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_new_version_gives_a_spec_the_revision_it_has(shape: str, make_context: MakeContext) -> None:
    """If this fails, an upgrade of the operator replaces the engines of every service, with up to twice the GPUs.

    Put a new field into the revision with `set_fields`, which leaves out what is not set: then these do not change.
    """
    ctx = make_context(**SHAPES[shape])
    assert {role: engine_template(ctx, role).revision for role in ctx.pools} == REVISIONS[shape]


class WiderParallelism(Parallelism):
    """As a later version may have it, with fields that nobody has set yet."""

    expert: int = 1
    hosts: list[str] = Field(default_factory=list[str])
    zone: str | None = None


@dataclass(frozen=True)
class WiderConfig(EngineConfig):
    later: int = 7


def test_a_field_that_nobody_has_set_changes_no_revision(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = make_context(decode={"parallelism": {"tensor": 2}})
    before = engine_template(ctx, "decode")
    monkeypatch.setattr(engine, "EngineConfig", WiderConfig)
    pool = ctx.spec.decode.model_copy(update={"parallelism": WiderParallelism(tensor=2)})
    wider = replace(ctx, spec=ctx.spec.model_copy(update={"decode": pool}))
    after = engine_template(wider, "decode")
    assert after.template != before.template, "the launcher is given the new field"
    assert after.revision == before.revision
    pool = ctx.spec.decode.model_copy(update={"parallelism": WiderParallelism(tensor=2, expert=2)})
    used = replace(ctx, spec=ctx.spec.model_copy(update={"decode": pool}))
    assert engine_template(used, "decode").revision != before.revision


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"engine": {"type": "vllm", "args": {}}, "imagePullSecrets": [], "paused": False}),
    ({}, {"engine": {"image": "vllm/vllm-openai:v0.32.0"}}),
    ({}, {"decode": {"parallelism": {"tensor": 1, "pipeline": 1}, "template": {}, "resources": {"requests": {}}}}),
    ({"decode": {"accelerator": {}}, "prefill": GPU},
     {"decode": {"accelerator": {"resource": "nvidia.com/gpu", "nodeSelector": {}}}, "prefill": GPU}),
    ({"model": {"uri": "hf://org/llama"}}, {"model": {"uri": "hf://org/llama", "name": "chat"}}),
    ({"engine": {"args": {"max-num-seqs": 8}}}, {"engine": {"args": {"max_num_seqs": 8}}}),
    ({"decode": {"resources": {"limits": {"cpu": 2}}}}, {"decode": {"resources": {"limits": {"cpu": "2"}}}}),
]  # fmt: skip


@pytest.mark.parametrize(("left_out", "stated"), SAME)
def test_a_stated_default_has_the_revision_of_one_that_is_left_out(
    left_out: dict[str, Any], stated: dict[str, Any], make_context: MakeContext
) -> None:
    ctx, same = make_context(**left_out), make_context(**stated)
    assert {r: revision_and_fingerprint(ctx, r) for r in ctx.pools} == {
        r: revision_and_fingerprint(same, r) for r in same.pools
    }


def setting_user(value: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", "env": [{"name": "USER", "value": value}]}]}}


def test_an_empty_value_in_a_pod_template_counts_since_it_may_replace_one_of_ours(make_context: MakeContext) -> None:
    templates = ({}, setting_user(""), setting_user("me"))
    revisions = {revision_and_fingerprint(make_context(decode={"template": t}))[0] for t in templates}
    assert len(revisions) == 3


AGGREGATED: dict[str, Any] = {"prefill": None, "decode": GPU}
NO_REVISION: list[dict[str, Any]] = [
    {"maxGeneration": "15m"},
    {"slo": {"ttft": "500ms", "itl": "80ms"}},
    {"engine": {"imagePullPolicy": "Always"}},
]


@pytest.mark.parametrize("change", NO_REVISION, ids=[next(iter(c)) for c in NO_REVISION])
def test_a_change_without_effect_on_answers_and_kv_is_no_revision(
    change: dict[str, Any], make_context: MakeContext
) -> None:
    """The pod template differs, and pods get it when they are replaced for another reason."""
    before, after = make_context(**AGGREGATED), make_context(**AGGREGATED, **change)
    assert revision_and_fingerprint(after) == revision_and_fingerprint(before)
    assert engine_template(after, "decode").template != engine_template(before, "decode").template


CHANGES: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("replicas", {"decode": {"replicas": {"min": 3, "max": 4}}}, False, False),
    ("targets", {"slo": {"ttft": "1s", "itl": "80ms"}}, False, False),
    ("router", {"router": {"replicas": 5}}, False, False),
    ("longest generation", {"maxGeneration": "15m"}, False, False),
    ("name that clients send", {"model": {"uri": "hf://org/llama", "name": "other"}}, True, False),
    ("secret", {"model": {"uri": "hf://org/llama", "name": "llama", "secretRef": {"name": "token"}}}, True, False),
    ("pull secret", {"imagePullSecrets": [{"name": "registry"}]}, True, False),
    ("node selector", {"decode": {"accelerator": {"nodeSelector": {"gpu": "h100"}}}, "prefill": GPU}, True, True),
    ("size of the other pool's replica", {"prefill": {"parallelism": {"tensor": 2}}}, True, False),
    ("size of a replica", {"decode": {"parallelism": {"tensor": 2}}}, True, False),
    ("no prefill", {"prefill": None}, True, True),
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
def test_changes_that_make_a_revision_or_a_fingerprint(
    what: str, change: dict[str, Any], new_revision: bool, new_fingerprint: bool, make_context: MakeContext
) -> None:
    before, after = revision_and_fingerprint(make_context()), revision_and_fingerprint(make_context(**change))
    assert (before[0] != after[0]) is new_revision
    assert (before[1] != after[1]) is new_fingerprint


def test_both_roles_read_each_others_kv_though_their_sizes_differ(make_context: MakeContext) -> None:
    ctx = make_context(prefill={**GPU, "parallelism": {"tensor": 4}}, decode=GPU)
    assert engine_template(ctx, "prefill").fingerprint == engine_template(ctx, "decode").fingerprint
