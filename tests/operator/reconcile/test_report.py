"""From what was planned and observed to conditions, status and Events."""

from __future__ import annotations

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.live_objects import NOW, by_type, observed, report

from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Ended, Failure, Observed, PodView, Workload
from phasewise_operator.reconcile.conditions import Reason, conditions
from phasewise_operator.reconcile.events import changed_conditions
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.reconcile.report import refused
from phasewise_operator.reconcile.role_views import role_views
from phasewise_operator.reconcile.status import status_of
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.types import Recommendation, SizeDecision


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


def test_a_pool_that_serves_all_the_same_says_what_is_wrong_with_a_pod(make_context: MakeContext) -> None:
    ctx = make_context(decode={"replicas": {"min": 1, "max": 2}}, prefill=None)
    plan = make_plan(ctx, Observed())
    ended = Ended(70, "Error", "RuntimeError: no offset; the engine ended")
    bad = PodView("bad", "decode", plan.engines[0].revision, ready=False, deleting=False, ended=ended)
    found = {u.type: u for u in report(ctx, plan, observed(plan, ready=1, pods=[bad]), [])}["DecodeReady"]
    assert found.status is ConditionStatus.TRUE
    assert (
        found.message == "1 of 1 replicas are ready; EngineFailed: pod bad: RuntimeError: no offset; the engine ended"
    )


@pytest.mark.parametrize(("old_ready", "hint"), [(1, True), (0, False), (None, False)])
def test_a_gpu_budget_is_the_advice_only_where_an_old_revision_is_kept(
    old_ready: int | None, hint: bool, make_context: MakeContext
) -> None:
    old = make_plan(make_context(prefill=None, engine={"image": "old:1"}), Observed())
    ctx = make_context(prefill=None)
    plan = make_plan(ctx, Observed() if old_ready is None else observed(old, ready=old_ready))
    labels = {"phasewise.dev/role": "decode", "phasewise.dev/revision": plan.engines[0].revision}
    labels["phasewise.dev/gpus"] = "1"
    condition = {"type": "PodScheduled", "reason": "Unschedulable", "message": "1 Insufficient nvidia.com/gpu."}
    pending = PodView.of({"metadata": {"name": "p", "labels": labels}, "status": {"conditions": [condition]}})
    updates = report(ctx, plan, Observed(pods=(pending,)), [])
    message = next(u.message for u in updates if u.type == "Reconciling")
    assert "Unschedulable" in message
    assert ("allowDowntime" in message) is hint


@pytest.mark.parametrize(
    ("failure", "stalled"),
    [
        (Failure("Service", "chat", "NameConflict", "was made by somebody else", refused=False), "True"),
        (Failure("Deployment", "x", "ApplyRefused", "422", refused=True), "True"),
        (Failure("Deployment", "x", "WriteFailed", "500", refused=False), "False"),
        (Failure("Deployment", "x", "DeleteRefused", "403", refused=True), "True"),
        (Failure("Service", "chat", "Progressing", "is to be collected", refused=False), "False"),
    ],
)
def test_a_child_that_cannot_be_written_is_reported(failure: Failure, stalled: str, make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    found = by_type(report(ctx, plan, Observed(), [failure]))
    assert found["Stalled"][0] == stalled
    if stalled == "True":
        assert found["Ready"] == ("False", failure.reason)


def test_the_condition_explains_the_first_refusal_and_names_all_others(make_context: MakeContext) -> None:
    ctx = make_context()
    failures = [Failure("Service", f"s{n}", "NameConflict", "made by another", refused=False) for n in range(15)]
    refused_first = [Failure("Deployment", "d", "ApplyRefused", "422", refused=True), *failures]
    updates = report(ctx, make_plan(ctx, Observed()), Observed(), refused_first)
    stalled = next(u for u in updates if u.type == "Stalled")
    assert stalled.reason == "ApplyRefused"
    assert stalled.message.startswith("Deployment d: 422; also Service s0 (NameConflict); also Service s1 ")
    assert stalled.message.endswith("; also Service s11 (NameConflict); and 3 more")


def test_a_pool_that_grows_stays_ready(make_context: MakeContext) -> None:
    ctx = make_context(prefill={"replicas": {"min": 1, "max": 4}}, router={"replicas": 1})
    grown = Recommendation(
        {"prefill": SizeDecision(3, "PrefillLoad", "more"), "decode": SizeDecision(1, "WithinTargets", "well")}
    )
    plan = make_plan(ctx, Observed(), grown)
    found = report(ctx, plan, observed(plan, ready=1), [])
    assert by_type(found)["Ready"][0] == "True"
    assert by_type(found)["Reconciling"][0] == "False"
    assert next(v.message for v in found if v.type == "PrefillReady") == "1 of 3 replicas are ready"


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
    assert found["Reconciling"] == ("True", "Paused"), "kstatus: what is asked for is not there"
    assert found["Ready"] == ("False", "Paused")
    assert found["DecodeReady"] == ("False", "ScaledToZero")


def test_a_service_that_is_paused_as_it_should_be_says_so_in_the_reason_of_ready(make_context: MakeContext) -> None:
    running = observed(make_plan(make_context(), Observed()), ready=2)
    ctx = make_context(paused=True)
    found = by_type(report(ctx, make_plan(ctx, running), running, []))
    assert found["Ready"] == ("True", "Paused")
    assert found["Reconciling"] == ("False", "Paused")
    ctx = make_context(paused=True, engine={"image": "other:2"})
    found = by_type(report(ctx, make_plan(ctx, running), running, []))
    assert found["Ready"] == ("True", "Paused")
    assert found["Reconciling"] == ("True", "Paused"), "the changed spec is not applied: not Current to kstatus"


def test_a_failure_that_repeats_is_in_the_message_whatever_it_is(make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    for count, shown in ((1, False), (2, False), (3, True)):
        failed = Failure("Service", "chat", "WriteFailed", "500: the webhook is away", refused=False, count=count)
        updates = report(ctx, plan, observed(plan, ready=2), [failed])
        message = next(u.message for u in updates if u.type == "Reconciling")
        assert message.startswith("1 objects are still to be written")
        assert ("Service chat: 500: the webhook is away" in message) is shown


def test_pods_that_may_not_be_created_stall(make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    now = observed(plan)
    for (kind, _), live in now.children.items():
        if kind == "Deployment":
            live["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": "quota exceeded"}]
    stalled = next(u for u in report(ctx, plan, now, []) if u.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "PodsRefused")
    assert "quota exceeded; change spec.prefill, or the quota" in stalled.message


def status(ctx: Context, now: Observed, before: Manifest, at: str = NOW) -> Manifest:
    plan = make_plan(ctx, now)
    live = {"metadata": {"generation": 3}, "status": before}
    views = role_views(ctx, plan, now, at)
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
    found = by_type(refused(Reason.INVALID_SPEC, "spec.decode: leave it out"))
    assert found == {
        "Ready": ("False", "InvalidSpec"),
        "Reconciling": ("False", "InvalidSpec"),
        "Stalled": ("True", "InvalidSpec"),
    }


@pytest.mark.parametrize(
    ("replicas", "ready", "updated", "current"),
    [(1, 1, 0, 0), (2, 1, 1, 0), (2, 2, 1, 1), (1, 1, 1, 1), (3, 2, 1, 0), (3, 3, 2, 2)],
)
def test_pods_of_an_older_template_do_not_count_as_current(
    replicas: int, ready: int, updated: int, current: int
) -> None:
    """One that surges is not ready while the old one is: the change has not arrived."""
    status = {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": updated}
    assert Workload.of({"metadata": {"name": "d"}, "status": status}).current == current


def test_a_workload_whose_status_is_old_counts_for_nothing_yet() -> None:
    live = {"metadata": {"name": "d", "generation": 2}, "status": {"observedGeneration": 1, "readyReplicas": 1}}
    assert not Workload.of(live).observed
