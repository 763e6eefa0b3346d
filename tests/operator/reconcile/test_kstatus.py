"""What tools that go by kstatus make of a service: `wait` of Flux, Helm and kpt, health in Argo CD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.kstatus import KStatus, kstatus
from tests.operator.reconcile.live_objects import NOW, observed, report

from phasewise_operator.api import crd
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Ended, Failure, Observed, PodView
from phasewise_operator.reconcile.conditions import Reason, conditions
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.reconcile.report import held, refused
from phasewise_operator.reconcile.role_views import role_views
from phasewise_operator.reconcile.status import status_of
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.types import NO_RECOMMENDATION

NO_FAILURES: list[Failure] = []
CURRENT, IN_PROGRESS, FAILED = KStatus.CURRENT, KStatus.IN_PROGRESS, KStatus.FAILED


def service(status: Manifest | None, generation: int = 1, **metadata: Any) -> Manifest:
    """As the API server returns it: where there is no status, with the CRD's default."""
    version = crd.manifest(crd.INFERENCE_SERVICE)["spec"]["versions"][0]
    default = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    return {
        "metadata": {"generation": generation, **metadata},
        "status": dict(default) if status is None else status,
    }


def reported(
    ctx: Context, now: Observed, failures: list[Failure] = NO_FAILURES, before: Manifest | None = None
) -> Manifest:
    """The service after a pass over what is observed; `before`: the service before it."""
    live = before or service(None)
    ctx = replace(ctx, generation=live["metadata"]["generation"])
    plan = make_plan(ctx, now)
    updates = report(ctx, plan, now, failures, before=live["status"])
    views = role_views(ctx, plan, now, NOW)
    status = status_of(ctx, plan, now, views, updates, NO_RECOMMENDATION, live, NOW)
    return {**live, "status": status}


def edited(live: Manifest) -> Manifest:
    return {**live, "metadata": {**live["metadata"], "generation": live["metadata"]["generation"] + 1}}


def children(ctx: Context, ready: int = 2, pods: list[PodView] | None = None) -> Observed:
    """All that the spec asks for, applied, with so many ready pods of a role at most."""
    return observed(make_plan(ctx, Observed()), ready, pods)


def states(live: Manifest) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in live["status"]["conditions"]}


def test_a_service_that_nobody_has_seen_yet_is_not_current() -> None:
    assert kstatus(service(None)) is IN_PROGRESS
    assert kstatus(service({})) is CURRENT, "only the default of the CRD keeps kstatus from that"


def test_a_service_is_current_when_all_is_ready(make_context: MakeContext) -> None:
    ctx = make_context()
    new = reported(ctx, Observed())
    starting = reported(ctx, children(ctx, ready=0), before=new)
    ready = reported(ctx, children(ctx), before=starting)
    assert [kstatus(live) for live in (new, starting, ready)] == [IN_PROGRESS, IN_PROGRESS, CURRENT]


def test_an_edited_service_is_not_current_before_nor_in_the_pass_that_writes_it(make_context: MakeContext) -> None:
    """What the pass has just written it has not observed yet."""
    running = children(make_context())
    ready = reported(make_context(), running)
    unseen = edited(ready)
    written = reported(make_context(router={"replicas": 1}), running, before=unseen)
    assert [kstatus(live) for live in (ready, unseen, written)] == [CURRENT, IN_PROGRESS, IN_PROGRESS]


def test_a_service_in_mid_rollout_is_not_current(make_context: MakeContext) -> None:
    running = children(make_context())
    assert kstatus(reported(make_context(engine={"image": "other:2"}), running)) is IN_PROGRESS


def test_repaired_drift_is_no_progress(make_context: MakeContext) -> None:
    ctx = make_context()
    ready = reported(ctx, children(ctx))
    running = children(ctx)
    drifted = replace(running, children={ref: m for ref, m in running.children.items() if ref[0] != "Service"})
    assert reported(ctx, drifted, before=ready) == ready


UNAPPLIED: dict[str, dict[str, Any]] = {
    "another engine": {"engine": {"image": "other:2"}},
    "a router less": {"router": {"replicas": 1}},
    "a larger minimum": {"decode": {"replicas": {"min": 2}}},
    "another mode and minimum": {"decode": {"replicas": {"min": 2, "max": 4}}, "scaling": {"mode": "Manual"}},
}


@pytest.mark.parametrize("changes", UNAPPLIED.values(), ids=UNAPPLIED)
def test_a_paused_service_is_current_unless_a_change_waits(changes: dict[str, Any], make_context: MakeContext) -> None:
    running = children(make_context())
    paused = reported(make_context(paused=True), running)
    changed = reported(make_context(paused=True, **changes), running, before=edited(paused))
    assert [kstatus(live) for live in (paused, changed)] == [CURRENT, IN_PROGRESS]
    assert states(paused)["Ready"] == states(changed)["Ready"] == ("True", "Paused")


def test_a_service_that_was_made_paused_is_not_current(make_context: MakeContext) -> None:
    made = reported(make_context(paused=True), Observed())
    assert kstatus(made) is IN_PROGRESS
    assert states(made)["Ready"] == ("False", "Paused")


def bad_pods(ctx: Context) -> list[PodView]:
    ended = Ended(78, "Error", "spec.model.uri: gone")
    revision = make_plan(ctx, Observed()).engines[-1].revision
    return [PodView("bad", "decode", revision, ready=False, deleting=False, ended=ended)]


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("changes", [{}, {"router": {"replicas": 1}}], ids=["applied", "unapplied"])
def test_a_service_that_waits_for_a_person_has_failed(
    paused: bool, changes: dict[str, Any], make_context: MakeContext
) -> None:
    """Whatever else is under way: kstatus goes by the first of Reconciling and Stalled, so both are never True."""
    running = children(make_context(), ready=0, pods=bad_pods(make_context()))
    live = reported(make_context(paused=paused, **changes), running)
    assert kstatus(live) is FAILED
    assert states(live)["Reconciling"][0] == "False"
    assert states(live)["Ready"] == ("False", "Paused" if paused else "ModelUnavailable"), "a column of kubectl get"


REFUSALS = [("ApplyRefused", True), ("CreateFailed", True), ("DeleteRefused", True), ("NameConflict", False)]


@pytest.mark.parametrize(("reason", "refused_by_server"), REFUSALS)
def test_a_service_of_which_a_child_is_refused_has_failed(
    reason: str, refused_by_server: bool, make_context: MakeContext
) -> None:
    failure = Failure("Service", "chat", reason, "422", refused_by_server)
    assert kstatus(reported(make_context(), Observed(), [failure])) is FAILED


def test_a_service_that_serves_while_its_newest_spec_is_refused_says_so_in_the_reason_of_ready(
    make_context: MakeContext,
) -> None:
    """`kubectl get` shows that reason, and not Stalled's."""
    failure = Failure("Service", "chat", "ApplyRefused", "422", refused=True)
    live = reported(make_context(), children(make_context()), [failure])
    assert kstatus(live) is FAILED
    assert states(live)["Ready"] == ("True", "ApplyRefused")
    message = next(c["message"] for c in live["status"]["conditions"] if c["type"] == "Ready")
    assert message == "all pools and the router are ready, but it is stalled: Service chat: 422"


def test_a_write_that_is_tried_again_is_progress(make_context: MakeContext) -> None:
    ctx = make_context()
    ready = reported(ctx, children(ctx))
    failure = Failure("Service", "chat", "WriteFailed", "500", refused=False)
    assert kstatus(reported(ctx, children(ctx), [failure], before=ready)) is IN_PROGRESS


@pytest.mark.parametrize("known", [True, False])
def test_a_service_that_cannot_be_acted_on_has_failed(known: bool, make_context: MakeContext) -> None:
    ctx = make_context()
    before: Manifest = reported(ctx, children(ctx))["status"] if known else {}
    for updates in (refused(Reason.INVALID_SPEC, "leave it out"), held(before, "forbidden")):
        found = [c.to_json() for c in conditions(updates, 1, before, NOW)]
        assert kstatus(service({"observedGeneration": 1, "conditions": found})) is FAILED


def test_a_pool_that_grows_leaves_the_service_current(make_context: MakeContext) -> None:
    ctx = make_context(decode={"replicas": {"min": 1, "max": 4}})
    running = children(ctx)
    for (kind, name), live in running.children.items():
        if kind == "Deployment" and "-decode-" in name:
            live["spec"]["replicas"] = 3
            live["metadata"]["annotations"]["phasewise.dev/desired-replicas"] = "3"
    grown = reported(ctx, running, before=reported(ctx, children(ctx)))
    assert grown["status"]["decode"]["desired"] == 3
    assert kstatus(grown) is CURRENT


@pytest.mark.parametrize(("pools", "reason"), [(("prefill", "decode"), "ScaledToZero"), (("prefill",), "Serving")])
def test_a_service_at_zero_as_its_spec_asks_is_current(
    pools: tuple[str, ...], reason: str, make_context: MakeContext
) -> None:
    ctx = make_context(**{role: {"replicas": {"min": 0, "max": 1}} for role in pools})
    live = reported(ctx, children(ctx))
    assert kstatus(live) is CURRENT
    assert states(live)["Ready"] == ("True", reason)
    assert kstatus(reported(ctx, children(ctx, ready=1))) is IN_PROGRESS, "a router is missing"


def test_a_service_on_its_way_out_is_terminating(make_context: MakeContext) -> None:
    ready = reported(make_context(), children(make_context()))["status"]
    assert kstatus(service(ready, deletionTimestamp=NOW)) is KStatus.TERMINATING
