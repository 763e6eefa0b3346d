"""What restarts engines and what does not: upgrades of the operator, edits that need no new pods, a request."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.conftest import IMAGES, MakeContext
from tests.operator.reconcile.live_objects import observed, report

from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.plan import Plan, make_plan
from phasewise_operator.render import pod_parts
from phasewise_operator.render.context import Context
from phasewise_runtime import contract

UPGRADE = replace(IMAGES, runtime="phasewise/runtime:2")
NEW_DEFAULT = replace(IMAGES, engine="vllm/vllm-openai:v0.40.0")


def running(ctx: Context) -> Observed:
    return observed(make_plan(ctx, Observed()), ready=2)


def engines(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """Engine Deployments by name."""
    is_engine = contract.ENGINE_ROLES
    return {
        m["metadata"]["name"]: m
        for m in manifests
        if m["kind"] == "Deployment" and m["metadata"]["labels"].get(contract.LABEL_ROLE) in is_engine
    }


def template_of(plan: Plan, role: str) -> dict[str, Any]:
    return next(e.template for e in plan.engines if e.role == role)


def launcher_image(plan: Plan, role: str) -> str:
    return template_of(plan, role)["spec"]["initContainers"][0]["image"]


def engine_image(plan: Plan, role: str) -> str:
    return template_of(plan, role)["spec"]["containers"][0]["image"]


def up_to_date(ctx: Context, plan: Plan, now: Observed) -> tuple[str, str, str]:
    update = next(u for u in report(ctx, plan, now, []) if u.type == "EnginesUpToDate")
    return update.status.value, update.reason, update.message


@pytest.mark.parametrize("images", [UPGRADE, NEW_DEFAULT, replace(IMAGES, pull_policy="Always")])
def test_an_upgrade_of_the_operator_restarts_no_engine(images: Any, make_context: MakeContext) -> None:
    ctx = make_context()
    now = running(ctx)
    plan = make_plan(replace(ctx, images=images), now)
    assert (engines(plan.changes.write), plan.changes.remove, plan.rollout.old) == ({}, (), {})
    assert up_to_date(ctx, plan, now)[:2] == ("False", "EnginesKept")


def test_nor_does_one_that_renders_pods_otherwise(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make_context()
    now = running(ctx)
    labels = pod_parts.pod_labels
    monkeypatch.setattr(pod_parts, "pod_labels", lambda ctx, role: {**labels(ctx, role), "later": "label"})
    assert engines(make_plan(ctx, now).changes.write) == {}


EDITS: list[dict[str, Any]] = [
    {"maxGeneration": "15m"},
    {"slo": {"ttft": "500ms", "itl": "80ms"}},
    {"engine": {"imagePullPolicy": "Always"}},
]


@pytest.mark.parametrize("prefill", [{}, None], ids=["disaggregated", "aggregated"])
@pytest.mark.parametrize("edit", EDITS, ids=[next(iter(e)) for e in EDITS])
def test_an_edit_that_needs_no_new_pods_restarts_none(edit: Any, prefill: Any, make_context: MakeContext) -> None:
    now = running(make_context(prefill=prefill))
    plan = make_plan(make_context(prefill=prefill, **edit), now)
    assert (engines(plan.changes.write), plan.changes.remove, plan.rollout.old) == ({}, (), {})


def test_the_condition_names_the_fields_that_are_kept_and_how_to_move_on(make_context: MakeContext) -> None:
    ctx = make_context(maxGeneration="15m")
    now = running(make_context())
    plan = make_plan(replace(ctx, images=replace(UPGRADE, engine="vllm/vllm-openai:v0.40.0")), now)
    _, _, message = up_to_date(ctx, plan, now)
    said = (
        "engine image vllm/vllm-openai:v0.32.0 (default now: vllm/vllm-openai:v0.40.0)",
        "prefill: spec.containers[engine].env[PHASEWISE_ENGINE].value, spec.initContainers[launcher].image, ",
        "spec.terminationGracePeriodSeconds; decode: ",
        "kubectl annotate -n default infsvc chat --overwrite phasewise.dev/refresh-engines=",
    )
    assert [text for text in said if text not in message] == []


def test_engines_as_they_are_rendered_are_up_to_date(make_context: MakeContext) -> None:
    ctx = make_context()
    now = running(ctx)
    assert up_to_date(ctx, make_plan(ctx, now), now)[:2] == ("True", "UpToDate")


def test_a_new_revision_brings_the_launcher_and_can_pair_with_the_pool_that_keeps_its_own(
    make_context: MakeContext,
) -> None:
    """The default engine image is the service's: it does not move with one pool."""
    now = running(make_context())
    ctx = make_context(decode={"resources": {"requests": {"cpu": 2}}})
    plan = make_plan(replace(ctx, images=replace(UPGRADE, engine="vllm/vllm-openai:v0.40.0")), now)
    assert [launcher_image(plan, role) for role in ctx.pools] == ["phasewise/runtime:1", "phasewise/runtime:2"]
    assert [engine_image(plan, role) for role in ctx.pools] == ["vllm/vllm-openai:v0.32.0"] * 2
    assert len({e.fingerprint for e in plan.engines}) == 1
    assert {m["metadata"]["labels"][contract.LABEL_ROLE] for m in engines(plan.changes.write).values()} == {"decode"}


def test_the_annotation_lets_all_engines_move_to_what_is_rendered_now(make_context: MakeContext) -> None:
    before = make_context()
    now = running(before)
    ctx = replace(before, images=UPGRADE, refresh="asked")
    plan = make_plan(ctx, now)
    assert engines(plan.changes.write).keys() == engines(tuple(now.children.values())).keys(), "in place"
    assert {launcher_image(plan, role) for role in ctx.pools} == {"phasewise/runtime:2"}
    assert up_to_date(ctx, plan, now)[0] == "False", "not before it is observed: who waits for it looks at pods next"
    after = observed(plan, ready=2)
    again = make_plan(ctx, after)
    assert again.changes.write == ()
    assert up_to_date(ctx, again, after)[0] == "True"
    assert engines(make_plan(replace(ctx, images=IMAGES), after).changes.write) == {}, "and there they stay"


def test_the_annotation_moves_the_default_engine_image_as_a_new_revision_beside_the_old(
    make_context: MakeContext,
) -> None:
    now = running(make_context())
    ctx = replace(make_context(), images=NEW_DEFAULT, refresh="asked")
    plan = make_plan(ctx, now)
    assert {engine_image(plan, role) for role in ctx.pools} == {"vllm/vllm-openai:v0.40.0"}
    assert len(plan.rollout.old) == 2, "the old pair serves on"
    both = observed(plan, ready=0)
    assert {e.revision for e in make_plan(ctx, both).engines} == {e.revision for e in plan.engines}


def test_a_new_service_gets_the_default_of_now_and_one_that_names_its_image_keeps_to_that(
    make_context: MakeContext,
) -> None:
    named = {"engine": {"image": "vllm/vllm-openai:v0.32.0"}}
    now = running(make_context(**named))
    fresh = make_plan(replace(make_context(), images=NEW_DEFAULT), Observed())
    assert engine_image(fresh, "decode") == NEW_DEFAULT.engine
    plan = make_plan(replace(make_context(**named), images=NEW_DEFAULT), now)
    assert (plan.changes.write, plan.behind) == ((), ())


def test_a_kept_template_is_repaired_where_somebody_edited_it(make_context: MakeContext) -> None:
    ctx = make_context()
    now = running(ctx)
    name, live = next(iter(engines(tuple(now.children.values())).items()))
    before = json.loads(json.dumps(live["spec"]["template"]))
    live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    fields = live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]
    del fields["f:terminationGracePeriodSeconds"]
    plan = make_plan(replace(ctx, images=UPGRADE), now)
    assert {n: m["spec"]["template"] for n, m in engines(plan.changes.write).items()} == {name: before}


@pytest.mark.parametrize("edit", ["theirs", "gone", "not JSON", "another revision's"])
def test_only_a_template_that_we_applied_ourselves_is_kept(edit: str, make_context: MakeContext) -> None:
    ctx = make_context(prefill=None)
    now = running(ctx)
    (live,) = engines(tuple(now.children.values())).values()
    notes = live["metadata"]["annotations"]
    if edit == "theirs":
        del live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"][
            f"f:{contract.ANNOTATION_TEMPLATE}"
        ]
    elif edit == "gone":
        del notes[contract.ANNOTATION_TEMPLATE]
    else:
        notes[contract.ANNOTATION_TEMPLATE] = "[" * 100_000 if edit == "not JSON" else '{"metadata": {"labels": {}}}'
    plan = make_plan(replace(ctx, images=UPGRADE), now)
    assert launcher_image(plan, "decode") == "phasewise/runtime:2"


def test_pools_that_could_not_pair_otherwise_move_together(make_context: MakeContext) -> None:
    """A version that judges by something else what KV blocks mean gives the same spec another fingerprint."""
    ctx = make_context()
    now = running(ctx)
    for live in engines(tuple(now.children.values())).values():
        notes = live["metadata"]["annotations"]
        kept = json.loads(notes[contract.ANNOTATION_TEMPLATE])
        kept["metadata"]["labels"][contract.LABEL_FINGERPRINT] = "earlier"
        notes[contract.ANNOTATION_TEMPLATE] = json.dumps(kept)
    assert {e.fingerprint for e in make_plan(ctx, now).engines} == {"earlier"}
    edited = make_context(decode={"resources": {"requests": {"cpu": 2}}})
    fingerprints = {e.fingerprint for e in make_plan(edited, now).engines}
    assert len(fingerprints) == 1
    assert fingerprints != {"earlier"}


def test_a_template_that_no_annotation_can_hold_is_not_kept(make_context: MakeContext) -> None:
    large = [{"name": "LARGE", "value": "x" * 200_000}]
    template = {"spec": {"containers": [{"name": "engine", "env": large}]}}
    ctx = make_context(prefill=None, decode={"template": template})
    plan = make_plan(ctx, Observed())
    (deployment,) = engines(plan.changes.write).values()
    assert contract.ANNOTATION_TEMPLATE not in deployment["metadata"]["annotations"]
    assert launcher_image(make_plan(replace(ctx, images=UPGRADE), running(ctx)), "decode") == "phasewise/runtime:2"


def test_any_other_text_in_the_annotation_is_another_request(make_context: MakeContext) -> None:
    ctx = make_context()
    meta = {"namespace": "default", "name": "chat", "uid": "u", "generation": 1}
    live = {"metadata": meta, "spec": ctx.spec.to_json()}
    found = {text: refresh_of(live, text) for text in (None, "", "1", "2", "x" * 100_000)}
    assert found[None] == found[""] == ""
    assert len({found["1"], found["2"], found["x" * 100_000], ""}) == 4
    assert max(len(refresh) for refresh in found.values()) == 10


def refresh_of(live: Manifest, text: str | None) -> str:
    annotations = {} if text is None else {contract.ANNOTATION_REFRESH: text}
    return Context.of({**live, "metadata": {**live["metadata"], "annotations": annotations}}, IMAGES).refresh
