"""From spec and observation to what is written and what is reported, through a service's life."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.managed_fields import fields_of

from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Ended, Failure, Observed, PodView, Workload
from phasewise_operator.reconcile import report as report_module
from phasewise_operator.reconcile.conditions import ConditionUpdate, Reason, conditions
from phasewise_operator.reconcile.events import changed_conditions
from phasewise_operator.reconcile.plan import Changes, Plan, make_plan, repair_changes
from phasewise_operator.reconcile.status import status_of
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation, SizeDecision
from phasewise_runtime import contract

NOW = "2026-01-02T03:04:05Z"


def stored(intent: Manifest, **status: Any) -> Manifest:
    """An applied child as it is read back."""
    live = copy.deepcopy(intent)
    body = {k: v for k, v in intent.items() if k not in ("apiVersion", "kind", "metadata")}
    meta = {k: v for k, v in intent["metadata"].items() if k not in ("name", "namespace")}
    entry = {"manager": contract.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields_of({**body, "metadata": meta})}
    live["metadata"].update(
        managedFields=[entry],
        generation=1,
        creationTimestamp="2026-01-01T00:00:00Z",
        uid=f"uid-{intent['metadata']['name']}",
    )
    live["status"] = {"observedGeneration": 1, **status}
    return live


def observed(plan: Plan, ready: int = 0, pods: list[PodView] | None = None) -> Observed:
    """All desired children as they are after a plan was carried out, each Deployment with `ready` pods."""
    children: dict[tuple[str, str], Manifest] = {}
    views: list[PodView] = list(pods or [])
    for intent in plan.desired:
        count = min(ready, intent.get("spec", {}).get("replicas", 0))
        live = (
            stored(intent, readyReplicas=count, updatedReplicas=count)
            if intent["kind"] == "Deployment"
            else stored(intent)
        )
        children[intent["kind"], intent["metadata"]["name"]] = live
        if intent["kind"] == "Deployment":
            labels = intent["metadata"]["labels"]
            role, revision = labels[contract.LABEL_ROLE], labels.get(contract.LABEL_REVISION, "")
            views += [PodView(f"{role}-{i}", role, revision, ready=True, deleting=False) for i in range(count)]
    return Observed(children, tuple(views))


def desired(deployment: Manifest) -> str | None:
    return deployment["metadata"]["annotations"].get(contract.ANNOTATION_DESIRED)


def report(
    ctx: Context,
    plan: Plan,
    now: Observed,
    failures: list[Failure],
    recommendation: Recommendation = NO_RECOMMENDATION,
) -> list[ConditionUpdate]:
    return report_module.report(ctx, plan, now, report_module.role_views(ctx, plan, now, NOW), failures, recommendation)


def by_type(updates: list[ConditionUpdate]) -> dict[str, tuple[str, str]]:
    return {v.type: (v.status.value, v.reason) for v in updates}


def test_a_new_service_writes_every_child_what_pods_need_before_pods(make_context: MakeContext) -> None:
    plan = make_plan(make_context(), Observed())
    kinds = [m["kind"] for m in plan.changes.write]
    assert sorted(set(kinds)) == sorted(
        ["ServiceAccount", "Role", "RoleBinding", "Service", "Deployment", "PodDisruptionBudget"]
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
    both = observed(rolling, ready=2)
    done = make_plan(ctx, both)
    assert {m["metadata"]["labels"][contract.LABEL_ROLE] for m in done.changes.remove} == {"prefill", "decode"}


def test_leaving_prefill_out_removes_its_children(make_context: MakeContext) -> None:
    running = observed(make_plan(make_context(), Observed()), ready=2)
    ctx = make_context(prefill=None)
    together = make_plan(ctx, observed(make_plan(ctx, running), ready=2))
    names = {(m["kind"], m["metadata"]["labels"][contract.LABEL_ROLE]) for m in make_plan(ctx, running).changes.remove}
    assert ("PodDisruptionBudget", "prefill") in names
    assert all(e.role == "decode" for e in together.engines)


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


def test_the_reason_of_a_pod_goes_up_to_ready(make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    decode = plan.engines[-1]
    bad = PodView(
        "p", "decode", decode.revision, ready=False, deleting=False, ended=Ended(78, "Error", "spec.model.uri: gone")
    )
    updates = report(ctx, plan, observed(plan, pods=[bad]), [])
    found = by_type(updates)
    assert found["DecodeReady"] == ("False", "ModelUnavailable")
    assert found["ModelReady"] == ("False", "ModelUnavailable")
    assert found["Stalled"] == ("True", "ModelUnavailable")
    assert found["Ready"] == ("False", "ModelUnavailable")
    assert found["Reconciling"][0] == "False"
    assert "gone" in next(v.message for v in updates if v.type == "Ready")


@pytest.mark.parametrize(
    ("failure", "stalled"),
    [
        (Failure("Service", "chat", "NameConflict", "was made by somebody else", refused=False), "True"),
        (Failure("Deployment", "x", "ApplyRefused", "422", refused=True), "True"),
        (Failure("Deployment", "x", "ApplyFailed", "500", refused=False), "False"),
    ],
)
def test_a_child_that_cannot_be_written_is_reported(failure: Failure, stalled: str, make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    found = by_type(report(ctx, plan, Observed(), [failure]))
    assert found["Stalled"][0] == stalled
    if stalled == "True":
        assert found["Ready"] == ("False", failure.reason)


KV_CASES = [
    (Recommendation(), "Unknown", "NoTraffic", "True"),
    (Recommendation(kv_good=frozenset({"prefill-0"})), "True", "Transferred", "True"),
    (
        Recommendation(kv_good=frozenset({"prefill-1"}), kv_failed=frozenset({"prefill-0"})),
        *("False", "KVParametersMissing", "False"),
    ),
    (Recommendation(kv_failed=frozenset({"a-pod-that-is-gone"})), "Unknown", "NoTraffic", "True"),
]


@pytest.mark.parametrize(("recommendation", "status", "reason", "ready"), KV_CASES)
def test_kv_transfer_is_ready_on_evidence_alone(
    recommendation: Recommendation, status: str, reason: str, ready: str, make_context: MakeContext
) -> None:
    ctx = make_context(prefill={"replicas": {"min": 2, "max": 2}})
    plan = make_plan(ctx, Observed())
    found = by_type(report(ctx, plan, observed(plan, ready=2), [], recommendation))
    assert found["KVTransferReady"] == (status, reason)
    assert found["Ready"][0] == ready


def test_a_pool_that_grows_stays_ready(make_context: MakeContext) -> None:
    ctx = make_context(prefill={"replicas": {"min": 1, "max": 4}}, router={"replicas": 1})
    grown = Recommendation(
        {"prefill": SizeDecision(3, "PrefillLoad", "more"), "decode": SizeDecision(1, "WithinTargets", "well")}
    )
    plan = make_plan(ctx, Observed(), grown)
    found = report(ctx, plan, observed(plan, ready=1), [], grown)
    assert by_type(found)["Ready"][0] == "True"
    assert by_type(found)["Reconciling"][0] == "False"
    assert next(v.message for v in found if v.type == "PrefillReady") == "1 of 3 replicas are ready"


def test_pools_that_cannot_read_each_others_kv_are_not_ready_for_transfer(make_context: MakeContext) -> None:
    other = {"spec": {"containers": [{"name": "engine", "image": "other:1"}]}}
    ctx = make_context(prefill={"template": other})
    plan = make_plan(ctx, Observed())
    assert by_type(report(ctx, plan, observed(plan, ready=2), []))["KVTransferReady"][1] == "FingerprintsDiffer"


def test_without_a_prefill_pool_there_is_no_kv_condition(make_context: MakeContext) -> None:
    ctx = make_context(prefill=None)
    plan = make_plan(ctx, Observed())
    assert "KVTransferReady" not in by_type(report(ctx, plan, Observed(), []))


def test_paused_and_scaled_to_zero_are_reasons(make_context: MakeContext) -> None:
    ctx = make_context(
        paused=True, prefill={"replicas": {"min": 0, "max": 1}}, decode={"replicas": {"min": 0, "max": 1}}
    )
    plan = make_plan(ctx, Observed())
    found = by_type(report(ctx, plan, Observed(), []))
    assert found["Reconciling"] == ("False", "Paused")
    assert found["DecodeReady"] == ("False", "ScaledToZero")


def test_pods_that_may_not_be_created_stall(make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    now = observed(plan)
    for (kind, _), live in now.children.items():
        if kind == "Deployment":
            live["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": "quota exceeded"}]
    found = by_type(report(ctx, plan, now, []))
    assert found["Stalled"] == ("True", "PodsRefused")


def status(ctx: Context, now: Observed, before: Manifest, at: str = NOW) -> Manifest:
    plan = make_plan(ctx, now)
    live = {"metadata": {"generation": 3}, "status": before}
    views = report_module.role_views(ctx, plan, now, at)
    return status_of(ctx, plan, now, views, report(ctx, plan, now, []), Recommendation(), live, at)


def test_a_status_says_the_same_until_something_changes(make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    first = status(ctx, observed(plan), {})
    assert status(ctx, observed(plan), first, "2027-01-01T00:00:00Z") == first
    ready = status(ctx, observed(plan, ready=2), first, "2027-01-01T00:00:00Z")
    times = {c["type"]: c["lastTransitionTime"] for c in ready["conditions"]}
    assert times["Ready"] == "2027-01-01T00:00:00Z"
    assert times["Stalled"] == NOW, "what did not change keeps its time"
    assert all(c["observedGeneration"] == 3 for c in ready["conditions"])
    assert ready["prefill"]["summary"] == "1/1"
    assert ready["url"] == "http://chat.default.svc"
    assert first["slo"]["ttft"] == {"target": "500ms", "summary": "-/500ms"}, "nothing measured, nothing claimed"


def test_an_event_is_recorded_once(make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    updates = report(ctx, plan, Observed(), [])
    assert [(v.type, v.status) for v in changed_conditions(updates, {})] == [("Ready", ConditionStatus.FALSE)]
    before = {"conditions": [c.to_json() for c in conditions(updates, 1, {}, NOW)]}
    assert changed_conditions(updates, before) == []


def test_an_unreadable_spec_is_stalled() -> None:
    found = by_type(report_module.refused(Reason.INVALID_SPEC, "spec.decode: leave it out"))
    assert found == {
        "Ready": ("False", "InvalidSpec"),
        "Reconciling": ("False", "InvalidSpec"),
        "Stalled": ("True", "InvalidSpec"),
    }


def test_a_workload_whose_status_is_old_counts_for_nothing_yet() -> None:
    live = {"metadata": {"name": "d", "generation": 2}, "status": {"observedGeneration": 1, "readyReplicas": 1}}
    assert not Workload.of(live).observed
