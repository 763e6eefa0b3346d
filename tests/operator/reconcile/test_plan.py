"""From spec and observation to what is written, through a service's life."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.live_objects import by_type, desired, observed, report, stored

from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.plan import Changes, make_plan, repair_changes
from phasewise_operator.render import children as render_children
from phasewise_operator.render.context import RenderError
from phasewise_runtime import contract


def test_a_new_service_writes_every_child_and_first_what_pods_need(make_context: MakeContext) -> None:
    plan = make_plan(make_context(), Observed())
    kinds = [m["kind"] for m in plan.changes.write]
    assert sorted(set(kinds)) == sorted(
        ["ServiceAccount", "RoleBinding", "Service", "NetworkPolicy", "Deployment", "PodDisruptionBudget"]
    )
    assert kinds[0] == "ServiceAccount"
    assert plan.changes.remove == ()
    updates = by_type(report(make_context(), plan, Observed(), []))
    assert updates["Ready"] == ("False", "ReplicasStarting")
    assert updates["Reconciling"] == ("True", "Progressing")
    assert updates["Stalled"][0] == "False"
    assert updates["ModelReady"][0] == "Unknown"


def test_nothing_is_written_where_nothing_differs(make_context: MakeContext) -> None:
    ctx = make_context()
    first = make_plan(ctx, Observed())
    again = make_plan(ctx, observed(first, ready=2))
    assert (again.changes.write, again.changes.remove) == ((), ())
    updates = by_type(report(ctx, again, observed(first, ready=2), []))
    assert {updates[t][0] for t in ("Ready", "PrefillReady", "DecodeReady", "RouterReady", "ModelReady")} == {"True"}
    assert updates["Reconciling"] == ("False", "Reconciled")


def test_a_changed_engine_comes_up_beside_the_old_which_then_goes(make_context: MakeContext) -> None:
    old = make_plan(make_context(), Observed())
    running = observed(old, ready=2)
    ctx = make_context(engine={"image": "vllm/vllm-openai:v0.33.0"})
    rolling = make_plan(ctx, running)
    assert rolling.changes.remove == ()
    sizes = [(m["metadata"]["labels"][contract.LABEL_ROLE], desired(m)) for m in rolling.changes.write]
    assert sizes == [("prefill", "1"), ("decode", "1"), ("decode", None), ("prefill", None)], (
        "only the current revision has the size"
    )
    updates = by_type(report(ctx, rolling, running, []))
    assert updates["Reconciling"] == ("True", "RollingOut")
    assert updates["Ready"][0] == "True", "the old pair goes on serving"
    loading = observed(rolling, ready=2)
    for new in rolling.engines:
        loading.children["Deployment", f"chat-{new.role}-{new.revision}"]["status"]["readyReplicas"] = 0
    assert make_plan(ctx, loading).changes.write == (), "the old are not written again and again"
    both = observed(rolling, ready=2)
    assert make_plan(ctx, both).changes.remove == (), "ready, but not for long enough"
    for new in rolling.engines:
        both.children["Deployment", f"chat-{new.role}-{new.revision}"]["status"]["availableReplicas"] = 1
    done = make_plan(ctx, both)
    served = {m["metadata"]["name"] for m in done.desired if desired(m) and served_annotation(m)}
    assert served == {f"chat-{e.role}-{e.revision}" for e in done.engines}, "it is recorded that they have served"
    assert {m["metadata"]["labels"][contract.LABEL_ROLE] for m in done.changes.remove} == {"prefill", "decode"}


def served_annotation(deployment: Manifest) -> str | None:
    return deployment["metadata"]["annotations"].get(contract.ANNOTATION_SERVED)


def test_a_rollout_that_the_budget_has_no_room_for_stalls_and_the_old_serves(make_context: MakeContext) -> None:
    full = {"scaling": {"gpuBudget": 2}, "prefill": GPUS, "decode": GPUS}
    running = observed(make_plan(make_context(**full), Observed()), ready=2)
    ctx = make_context(**full, engine={"image": "vllm/vllm-openai:v0.33.0"})
    plan = make_plan(ctx, running)
    updates = {u.type: u for u in report(ctx, plan, running, [])}
    assert (updates["Stalled"].status.value, updates["Stalled"].reason) == ("True", "RolloutBlocked")
    assert "rollout.allowDowntime" in updates["Stalled"].message
    assert (updates["Ready"].status.value, updates["Reconciling"].reason) == ("True", "RolloutBlocked")
    assert plan.changes.remove == ()
    allowed = make_plan(
        make_context(**full, engine={"image": "vllm/vllm-openai:v0.33.0"}, rollout={"allowDowntime": True}), running
    )
    assert len(allowed.changes.remove) == 2
    paused = make_context(**full, engine={"image": "vllm/vllm-openai:v0.33.0"}, paused=True)
    blocked_and_paused = by_type(report(paused, make_plan(paused, running), running, []))
    assert blocked_and_paused["Stalled"][0] == "False", "nothing would be done anyway"


def test_the_rolling_update_of_an_old_deployment_is_left_as_it_is(make_context: MakeContext) -> None:
    """It may be in the middle of one: without surge its only pod that is ready would go."""
    pools = {"prefill": GPUS, "decode": GPUS}
    first = make_plan(make_context(**pools), Observed())
    strategies = {m["metadata"]["name"]: m["spec"]["strategy"] for m in first.desired if m["kind"] == "Deployment"}
    tight = make_context(**pools, engine={"image": "vllm/vllm-openai:v0.33.0"}, scaling={"gpuBudget": 4})
    rolling = make_plan(tight, observed(first, ready=1))
    old = [m for m in rolling.changes.write if m["kind"] == "Deployment" and m["metadata"]["name"] in strategies]
    assert len(old) == 2
    assert all(m["spec"]["strategy"] == strategies[m["metadata"]["name"]] for m in old)


def test_once_anything_is_recorded_a_deployment_that_is_made_again_is_recorded_too(make_context: MakeContext) -> None:
    running = observed(make_plan(make_context(), Observed()), ready=1)
    assert make_plan(make_context(), running).changes.write == (), "a service that never rolled takes no write for it"
    prefill, decode = (
        m for (kind, name), m in running.children.items() if kind == "Deployment" and "router" not in name
    )
    prefill["metadata"]["annotations"][contract.ANNOTATION_SERVED] = "true"
    for live in (prefill, decode):
        live["status"]["availableReplicas"] = 1
    plan = make_plan(make_context(), running)
    assert all(served_annotation(m) for m in plan.desired if desired(m))


GPUS = {"accelerator": {"resource": "nvidia.com/gpu"}}


@pytest.mark.parametrize(("budget", "surge"), [(None, (1, 0)), (4, (1, 0)), (3, (0, 1)), (2, (0, 1))])
def test_a_rolling_update_in_place_keeps_the_gpu_budget(
    budget: int | None, surge: tuple[int, int], make_context: MakeContext
) -> None:
    """Two pools of one GPU: with one replica more of each they hold four."""
    scaling = {"gpuBudget": budget} if budget else {}
    plan = make_plan(make_context(prefill=GPUS, decode=GPUS, scaling=scaling), Observed())
    engines = [m for m in plan.desired if m["kind"] == "Deployment" and "revision" in str(m["metadata"]["labels"])]
    updates = [m["spec"]["strategy"]["rollingUpdate"] for m in engines]
    assert [(u["maxSurge"], u["maxUnavailable"]) for u in updates] == [surge, surge]


def test_leaving_prefill_out_removes_its_children(make_context: MakeContext) -> None:
    running = observed(make_plan(make_context(), Observed()), ready=2)
    ctx = make_context(prefill=None)
    together = make_plan(ctx, observed(make_plan(ctx, running), ready=2))
    names = {(m["kind"], m["metadata"]["labels"][contract.LABEL_ROLE]) for m in make_plan(ctx, running).changes.remove}
    assert ("PodDisruptionBudget", "prefill") in names
    assert all(e.role == "decode" for e in together.engines)


def test_an_old_deployment_of_which_nothing_is_ours_is_made_smaller_all_the_same(make_context: MakeContext) -> None:
    """As a backup tool or `kubectl replace` leaves it: another manager owns all of it."""
    running = observed(make_plan(make_context(), Observed()), ready=2)
    for (kind, _), live in running.children.items():
        if kind == "Deployment":
            live["metadata"]["managedFields"] = []
    ctx = make_context(engine={"image": "vllm/vllm-openai:v0.33.0"})
    known = {name for kind, name in running.children if kind == "Deployment"}
    old = [m for m in make_plan(ctx, running).desired if m["metadata"]["name"] in known - {"chat-router"}]
    assert [m["spec"] for m in old] == [{"replicas": 1}, {"replicas": 1}]
    assert all(m["metadata"]["ownerReferences"] for m in old)


def test_a_child_that_lost_a_field_is_written_again_and_nothing_else(make_context: MakeContext) -> None:
    ctx = make_context()
    now = observed(make_plan(ctx, Observed()), ready=2)
    service = now.children["Service", "chat"]
    del service["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:selector"]
    plan = make_plan(ctx, now)
    assert [(m["kind"], m["metadata"]["name"]) for m in plan.changes.write] == [("Service", "chat")]


def test_routers_are_replaced_when_their_account_was_made_anew_and_only_then(make_context: MakeContext) -> None:
    """A token is bound to the uid of its account: what the old pods hold is void."""
    ctx = make_context()
    now = observed(make_plan(ctx, Observed()), ready=2)
    account = now.children["ServiceAccount", "chat-router"]["metadata"]
    account.update(uid="uid-2", creationTimestamp="2026-01-01T00:05:00Z")
    (router,) = make_plan(ctx, now).changes.write
    assert router["spec"]["template"]["metadata"]["annotations"] == {contract.ANNOTATION_ACCOUNT: "uid-2"}
    after = observed(make_plan(ctx, now), ready=2)
    after.children["ServiceAccount", "chat-router"]["metadata"].update(account)
    assert make_plan(ctx, after).changes.write == ()
    assert repair_changes(ctx, after) == Changes(), "a spec that cannot be rendered does not replace them once more"


def test_a_new_label_of_all_children_reaches_those_that_live_and_restarts_no_pod(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the Deployments of an old revision, and PoolScalers."""
    labels, scaling = render_children.child_labels, {"mode": "External"}
    before = make_plan(make_context(scaling=scaling), Observed())
    settled = observed(before, ready=2)
    scalers = {(m["kind"], m["metadata"]["name"]): stored(m) for m in before.changes.create}
    running = Observed({**settled.children, **scalers}, settled.pods)
    monkeypatch.setattr(render_children, "child_labels", lambda ctx: {**labels(ctx), "team": "a"})
    ctx = make_context(scaling=scaling, engine={"image": "vllm/vllm-openai:v0.33.0"})
    written = {(m["kind"], m["metadata"]["name"]): m for m in make_plan(ctx, running).changes.write}
    assert running.children.keys() < written.keys()
    assert {m["metadata"]["labels"]["team"] for m in written.values()} == {"a"}
    for ref, live in running.children.items():
        assert written[ref].get("spec", {}).get("template") == live.get("spec", {}).get("template")
    assert {"PoolScaler", "Deployment"} <= {kind for kind, _ in running.children}


def in_engine(**fields: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "engine", **fields}]}}}


LAYOUT = {"name": "VLLM_KV_CACHE_LAYOUT", "value": "HND"}
CANNOT_PAIR: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"prefill": in_engine(image="other:1")}, ("spec.prefill.template.spec.containers[engine].image", "other:1")),
    ({"decode": in_engine(env=[LAYOUT])}, ("spec.decode.template.spec.containers[engine].env[VLLM_KV_CACHE", "=HND")),
    ({"prefill": GPUS}, ("spec.prefill.accelerator and spec.decode.accelerator", "gpu and with cpu")),
]


@pytest.mark.parametrize(("change", "said"), CANNOT_PAIR, ids=["image", "environment", "device"])
def test_a_spec_whose_pools_cannot_pair_is_refused_and_the_pair_that_works_is_kept(
    change: dict[str, Any], said: tuple[str, ...], make_context: MakeContext
) -> None:
    running = observed(make_plan(make_context(), Observed()), ready=2)
    ctx = make_context(**change)
    with pytest.raises(RenderError) as refusal:
        make_plan(ctx, running)
    assert [text for text in said if text not in str(refusal.value)] == []
    assert repair_changes(ctx, running) == Changes(), "no child of the service is written or removed"


def test_the_same_change_in_both_pools_is_none_that_keeps_them_from_pairing(make_context: MakeContext) -> None:
    both = in_engine(image="other:1", env=[LAYOUT])
    plan = make_plan(make_context(prefill=both, decode=both), Observed())
    assert len({e.fingerprint for e in plan.engines}) == 1


def rolling_to(proved: frozenset[str] | None, make_context: MakeContext, **changes: Any) -> list[str]:
    """Deployments that a step removes when all pods of a new image are available beside the old."""
    old = observed(make_plan(make_context(**changes), Observed()), ready=2)
    ctx = make_context(**changes, engine={"image": "vllm/vllm-openai:v0.33.0"})
    running = observed(make_plan(ctx, Observed()), ready=2)
    both = Observed({**old.children, **running.children}, (*old.pods, *running.pods))
    for live in both.children.values():
        if live["kind"] == "Deployment":
            live["status"]["availableReplicas"] = live["status"]["readyReplicas"]
    return [m["metadata"]["name"] for m in make_plan(ctx, both, proved=proved).changes.remove]


def test_old_deployments_go_when_the_new_pods_have_handed_kv_over(make_context: MakeContext) -> None:
    assert rolling_to(frozenset(), make_context) == []
    assert len(rolling_to(frozenset({"prefill-0", "decode-0"}), make_context)) == 2
    assert len(rolling_to(None, make_context)) == 2


@pytest.mark.parametrize("changes", [{"prefill": None}, {"prefill": {"replicas": {"min": 0, "max": 1}}}])
def test_pods_that_have_nobody_to_hand_kv_to_need_no_proof(changes: dict[str, Any], make_context: MakeContext) -> None:
    assert rolling_to(frozenset(), make_context, **changes) != []
