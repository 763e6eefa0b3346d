"""A rollout that fails: what is written, what is remembered, what the conditions say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.live_objects import NOW, desired, observed, report

from phasewise_operator.api.spec import DEFAULT_ROLLOUT_DEADLINE
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Ended, Observed, PodView
from phasewise_operator.reconcile.conditions import ConditionUpdate
from phasewise_operator.reconcile.plan import Plan, make_plan
from phasewise_operator.reconcile.report import rollout_status
from phasewise_operator.render.context import Context
from phasewise_operator.render.engine import PROBED_SECONDS
from phasewise_operator.scaling.types import NO_RECOMMENDATION, Recommendation
from phasewise_runtime import contract

NEW_IMAGE = {"image": "vllm/vllm-openai:v0.33.0"}
LATER = "2026-01-02T04:00:00Z"
ROLL_BACK = {"onFailure": "RollBack"}


def deployments(plan: Plan) -> dict[str, Manifest]:
    found = [m for m in plan.desired if m["kind"] == "Deployment"]
    return {m["metadata"]["name"].removeprefix("chat-"): m for m in found if "revision" in str(m["metadata"]["labels"])}


def replicas(plan: Plan) -> dict[str, int]:
    return {name: m["spec"]["replicas"] for name, m in deployments(plan).items()}


def note(manifest: Manifest) -> str | None:
    return manifest["metadata"]["annotations"].get(contract.ANNOTATION_FAILED)


class Rolling:
    """The old revision serves, and the first pods of the new one are there."""

    def __init__(self, make_context: MakeContext, **changes: Any) -> None:
        pools = {"prefill": {"replicas": {"min": 2}}, "decode": {"replicas": {"min": 2}}}
        self.make = make_context
        self.old_ctx = make_context(**pools)
        self.ctx = make_context(**pools, engine=NEW_IMAGE, **changes)
        old = make_plan(self.old_ctx, Observed())
        self.old = {e.role: f"{e.role}-{e.revision}" for e in old.engines}
        first = make_plan(self.ctx, observed(old, ready=2), now=NOW)
        self.new = {e.role: f"{e.role}-{e.revision}" for e in first.engines}
        self.seen = self.carried_out(first)

    def carried_out(self, plan: Plan, **pod: Any) -> Observed:
        """Pods of the new revision are not ready; `pod`: what is seen of its decode pod."""
        now = observed(plan, ready=2)
        made = {e.revision: e.role for e in plan.engines}
        for live in now.children.values():
            if live["metadata"].get("labels", {}).get(contract.LABEL_REVISION) in made:
                live["status"].update(readyReplicas=0, availableReplicas=0)
        pods = [p for p in now.pods if p.revision not in made]
        state: dict[str, Any] = {"ready": False, "created": NOW} | pod
        pods += [PodView(f"new-{r}", r, rev, deleting=False, **state) for rev, r in made.items()]
        return Observed(now.children, tuple(pods))

    def plan(
        self,
        seen: Observed,
        now: str = LATER,
        ctx: Context | None = None,
        recommendation: Recommendation = NO_RECOMMENDATION,
    ) -> Plan:
        return make_plan(ctx or self.ctx, seen, recommendation, now=now)


REFUSED: dict[str, Any] = {"ended": Ended(contract.EXIT_CONFIG, "Error", "no such\noption")}


def stalled(plan: Plan, ctx: Context, seen: Observed) -> tuple[ConditionUpdate, dict[str, ConditionUpdate]]:
    updates = {u.type: u for u in report(ctx, plan, seen, [])}
    return updates["Stalled"], updates


def test_a_rollout_that_fails_stops_and_says_why_since_when_and_what_goes_on(make_context: MakeContext) -> None:
    rolling = Rolling(make_context)
    assert rolling.plan(rolling.seen).failed is None, "it has time"
    seen = rolling.carried_out(rolling.plan(rolling.seen), **REFUSED)
    plan = rolling.plan(seen)
    old, new = rolling.old, rolling.new
    assert replicas(plan) == {old["prefill"]: 2, old["decode"]: 2, new["prefill"]: 1, new["decode"]: 1}
    condition, updates = stalled(plan, rolling.ctx, seen)
    assert (condition.status.value, condition.reason) == ("True", "RolloutFailed")
    for part in ("EngineRefused", LATER, "no such option", "goes on serving", "pod new-prefill"):
        assert part in condition.message
    assert (updates["Ready"].status.value, updates["Ready"].reason) == ("True", "RolloutFailed")
    assert (updates["Reconciling"].status.value, updates["Reconciling"].reason) == ("False", "RolloutFailed")


def test_turned_back_the_old_has_the_size_and_the_new_stays_marked_without_replicas(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    plan = rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED))
    made, old, new = deployments(plan), rolling.old, rolling.new
    assert replicas(plan) == {old["prefill"]: 2, old["decode"]: 2, new["prefill"]: 0, new["decode"]: 0}
    assert {name: desired(m) for name, m in made.items()} == {
        **dict.fromkeys(old.values(), "2"),
        **dict.fromkeys(new.values(), None),
    }, "scaling goes by the revision that serves"
    assert plan.changes.remove == ()
    (mark,) = {note(made[name]) for name in new.values()}
    revisions = "-".join(name.partition("-")[2] for name in new.values())
    assert mark is not None
    assert mark.startswith(f"{LATER} EngineRefused {revisions} prefill: InvalidEngine: pod new-prefill: no such option")
    assert {note(made[name]) for name in old.values()} == {None}


def test_what_failed_is_remembered_costs_no_writes_and_keeps_its_time(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    failed = rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED))
    seen = observed(failed, ready=2)
    again = rolling.plan(seen, now="2026-01-03T00:00:00Z")
    assert again.failed == failed.failed
    assert (again.changes.write, again.changes.remove) == ((), ())
    condition, updates = stalled(again, rolling.ctx, seen)
    assert (condition.status.value, condition.reason) == ("True", "RolledBack")
    assert condition == stalled(failed, rolling.ctx, seen)[0], "the same message"
    assert updates["Ready"].status.value == "True"
    assert updates["PrefillReady"].status.value == "True"


def test_a_mark_keeps_its_time_while_another_cannot_be_written(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    failed = rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED))
    seen = rolling.carried_out(failed, **REFUSED)
    decode = seen.children["Deployment", f"chat-{rolling.new['decode']}"]
    del decode["metadata"]["annotations"][contract.ANNOTATION_FAILED]
    assert rolling.plan(seen, now="2026-01-03T00:00:00Z").failed == failed.failed


def test_scaling_goes_on_with_the_old_revision(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    seen = observed(rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED)), ready=2)
    bigger = make_context(
        prefill={"replicas": {"min": 4}}, decode={"replicas": {"min": 2}}, engine=NEW_IMAGE, rollout=ROLL_BACK
    )
    plan = rolling.plan(seen, ctx=bigger)
    assert replicas(plan)[rolling.old["prefill"]] == 4
    assert replicas(plan)[rolling.new["prefill"]] == 0


@pytest.mark.parametrize("how", ["refresh", "deployment"])
def test_the_same_is_tried_again_when_somebody_asks_for_it(how: str, make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    failed = rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED))
    seen, ctx = observed(failed, ready=2), rolling.ctx
    if how == "refresh":
        ctx = copy.copy(ctx)
        object.__setattr__(ctx, "refresh", "again")
    else:
        gone = ("Deployment", f"chat-{rolling.new['decode']}")
        seen = Observed({ref: live for ref, live in seen.children.items() if ref != gone}, seen.pods)
    plan = rolling.plan(seen, ctx=ctx)
    assert plan.failed is None
    assert [replicas(plan)[name] for name in rolling.new.values()] == [1, 1]
    assert {note(m) for m in deployments(plan).values()} == {None}


def test_another_edit_of_one_pool_is_another_rollout(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    seen = observed(rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED)), ready=2)
    more = {"resources": {"requests": {"cpu": "3"}}}
    ctx = make_context(prefill={**more}, decode={}, engine=NEW_IMAGE, rollout=ROLL_BACK)
    plan = rolling.plan(seen, ctx=ctx)
    assert plan.failed is None, "decode is as in the spec that failed"
    assert note(deployments(plan)[rolling.new["decode"]]) is None


def test_a_mark_holds_for_the_spec_that_failed(make_context: MakeContext) -> None:
    """Both pools were changed, KV-compatibly, and failed; then one of the changes is taken back."""
    changed = {"resources": {"requests": {"cpu": "3"}}}
    old = make_plan(make_context(), Observed())
    both, one = make_context(prefill=changed, decode=changed), make_context(prefill=changed)
    first = make_plan(both, observed(old, ready=1), now=NOW)
    seen = observed(first, ready=1)
    pods = [PodView("new", e.role, e.revision, ready=False, deleting=False, **REFUSED) for e in first.engines]
    failed = make_plan(both, Observed(seen.children, (*seen.pods, *pods)), now=LATER)
    assert failed.failed
    again = observed(failed, ready=1)
    assert make_plan(both, again, now=LATER).failed
    assert make_plan(one, again, now=LATER).failed is None


def test_editing_back_removes_what_failed(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    seen = observed(rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED)), ready=2)
    plan = rolling.plan(seen, ctx=rolling.old_ctx)
    assert (plan.failed, replicas(plan)) == (None, dict.fromkeys(rolling.old.values(), 2))
    assert {m["metadata"]["name"] for m in plan.changes.remove} >= {f"chat-{name}" for name in rolling.new.values()}


def test_a_first_revision_does_not_fail_but_says_what_is_wrong(make_context: MakeContext) -> None:
    ctx = make_context(rollout=ROLL_BACK)
    first = make_plan(ctx, Observed())
    pods = [PodView(f"new-{e.role}", e.role, e.revision, False, False, **REFUSED) for e in first.engines]
    seen = observed(first, pods=pods)
    plan = make_plan(ctx, seen, now=LATER)
    assert plan.failed is None
    assert stalled(plan, ctx, seen)[0].reason == "InvalidEngine"


def test_nothing_fails_while_the_service_is_paused(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, paused=True)
    assert rolling.plan(rolling.carried_out(rolling.plan(rolling.seen), **REFUSED)).failed is None


@pytest.mark.parametrize(("minute", "fails"), [("13", False), ("15", True)])
def test_the_deadline_is_that_of_the_spec_or_as_long_as_an_engine_may_take_to_start(
    minute: str, fails: bool, make_context: MakeContext
) -> None:
    """70 minutes after 03:04:05."""
    assert DEFAULT_ROLLOUT_DEADLINE.seconds == PROBED_SECONDS
    rolling = Rolling(make_context)
    assert (rolling.plan(rolling.seen, now=f"2026-01-02T04:{minute}:00Z").failed is not None) is fails
    short = Rolling(make_context, rollout={"deadline": "10m"})
    assert short.plan(short.seen, now="2026-01-02T03:14:05Z").failed


def test_what_the_routers_saw_for_a_minute_fails_it(make_context: MakeContext) -> None:
    rolling = Rolling(make_context)
    seen = rolling.carried_out(rolling.plan(rolling.seen), ready=True)
    revision = rolling.new["decode"].partition("-")[2]
    for recommendation, cause in (
        (Recommendation(slower={("decode", revision): "too slow"}), "SlowerThanOld"),
        (Recommendation(kv_fails={"new-decode": "no KV"}), "KVTransferFails"),
    ):
        plan = rolling.plan(seen, recommendation=recommendation)
        assert plan.failed is not None
        assert plan.failed.cause == cause
    assert rolling.plan(seen, recommendation=NO_RECOMMENDATION).failed is None


def test_the_status_says_how_the_rollout_goes_and_keeps_its_time(make_context: MakeContext) -> None:
    rolling = Rolling(make_context, rollout=ROLL_BACK)
    plan = rolling.plan(rolling.seen)
    begun = rollout_status(rolling.ctx, plan, {}, NOW)
    assert begun is not None
    assert (begun.state, begun.revision, begun.since) == ("Progressing", plan.revision, NOW)
    assert rollout_status(rolling.ctx, plan, begun.to_json(), LATER) == begun
    failed = rolling.plan(rolling.carried_out(plan, **REFUSED))
    found = rollout_status(rolling.ctx, failed, begun.to_json(), "2026-01-03T00:00:00Z")
    assert found is not None
    assert (found.state, found.reason, found.since) == ("RolledBack", "EngineRefused", LATER)
    assert found.old_revision == "-".join(name.partition("-")[2] for name in rolling.old.values())
    done = make_plan(rolling.old_ctx, observed(make_plan(rolling.old_ctx, Observed()), ready=2))
    assert rollout_status(rolling.old_ctx, done, begun.to_json(), LATER) is None
