"""From what was planned and observed to updates: conditions that have no times yet. Pure; status.py goes on from here.

What each condition means is in conditions.CONDITIONS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from phasewise_operator.api.spec import OnFailure
from phasewise_operator.api.status import ConditionStatus, RolloutState, RolloutStatus
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Failure, Observed
from phasewise_operator.reconcile.conditions import (
    DECODE_READY,
    ENGINES_UP_TO_DATE,
    KV_TRANSFER_READY,
    MODEL_READY,
    PREFILL_READY,
    READY,
    RECONCILING,
    ROUTER_READY,
    STALLED,
    ConditionUpdate,
    Reason,
    Severity,
)
from phasewise_operator.reconcile.kv_condition import kv_condition
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.reconcile.pod_problems import PodProblem
from phasewise_operator.reconcile.role_views import RoleView
from phasewise_operator.reconcile.scaling_conditions import scaling_conditions
from phasewise_operator.reconcile.sizes import unpaused_sizes
from phasewise_operator.render.context import Context
from phasewise_operator.rollout.failure import RolloutFailure
from phasewise_operator.scaling.signals.kv_evidence import NO_EVIDENCE, KvEvidence
from phasewise_runtime import contract

REPEATED: Final = 3
"""From so many failures in a row on a child's failure is worth a word: before that it may have passed by itself."""
REFUSALS_NAMED: Final = 12
"""Beside the first: as many as a service has children that are not engines."""
_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
ROLE_CONDITIONS: Final = {
    contract.PREFILL: PREFILL_READY,
    contract.DECODE: DECODE_READY,
    contract.ROUTER: ROUTER_READY,
}


def report(
    ctx: Context,
    plan: Plan,
    observed: Observed,
    views: Mapping[str, RoleView],
    failures: Sequence[Failure],
    evidence: KvEvidence = NO_EVIDENCE,
    before: Mapping[str, Any] = MappingProxyType({}),
) -> list[ConditionUpdate]:
    """`views`: what role_views returned for the same plan and observation. `before`: the status as it is stored."""
    roles = [_role_condition(v) for v in views.values()]
    stalled = _stalled(ctx, plan, views, failures)
    kv = [kv_condition(observed, evidence, before)] if ctx.disaggregated else []
    return [
        _ready(ctx, [*roles, *kv], stalled),
        _model_condition(ctx, views),
        *roles,
        *kv,
        *scaling_conditions(ctx, plan),
        _engines_condition(ctx, plan),
        _reconciling(ctx, plan, views, failures, stalled, _is_unapplied(ctx, plan, observed, before)),
        stalled,
    ]


def refused(reason: Reason, message: str) -> list[ConditionUpdate]:
    """Conditions of a spec that cannot be acted on: what runs is left as it is."""
    return [
        ConditionUpdate(READY, _FALSE, reason, message),
        ConditionUpdate(RECONCILING, _FALSE, reason, "waits for a spec that can be acted on"),
        ConditionUpdate(STALLED, _TRUE, reason, message),
    ]


def held(before: Manifest, message: str) -> list[ConditionUpdate]:
    """Conditions while children cannot be read. Of a status `before`: what it says of the children stays."""
    kept = [c for c in before.get("conditions", []) if c["type"] not in (RECONCILING, STALLED)]
    reason = Reason.CHILDREN_UNKNOWN
    return [
        *(ConditionUpdate(c["type"], _UNKNOWN, c["reason"], c["message"], provisional=True) for c in kept),
        ConditionUpdate(RECONCILING, _FALSE, reason, "nothing is changed before it is known what there is"),
        ConditionUpdate(STALLED, _TRUE, reason, message),
    ]


def _role_condition(view: RoleView) -> ConditionUpdate:
    name = ROLE_CONDITIONS[view.role]
    count = f"{view.ready} of {view.desired} replicas are ready"
    if view.desired == 0:
        return ConditionUpdate(name, _FALSE, Reason.SCALED_TO_ZERO, "no replica is desired")
    if view.ready >= view.needed:
        text = f"{count}; {view.problem.reason}: {view.problem.message}" if view.problem else count
        return ConditionUpdate(name, _TRUE, Reason.REPLICAS_READY, text)
    if view.problem:
        return _of_problem(name, view.problem)
    return ConditionUpdate(name, _FALSE, Reason.REPLICAS_STARTING, count, Severity.NORMAL)


def _of_problem(name: str, problem: PodProblem) -> ConditionUpdate:
    return ConditionUpdate(name, _FALSE, problem.reason, problem.message, problem.severity)


def _model_condition(ctx: Context, views: Mapping[str, RoleView]) -> ConditionUpdate:
    engines = [v for v in views.values() if v.role != contract.ROUTER]
    if any(v.current > 0 for v in engines):
        return ConditionUpdate(MODEL_READY, _TRUE, Reason.LOADED, f"{ctx.spec.model.uri} is loaded")
    problem = next((v.problem for v in engines if v.problem and v.problem.condition == MODEL_READY), None)
    if problem:
        return _of_problem(MODEL_READY, problem)
    text = f"no engine has loaded {ctx.spec.model.uri} yet"
    return ConditionUpdate(MODEL_READY, ConditionStatus.UNKNOWN, Reason.LOADING, text)


def _engines_condition(ctx: Context, plan: Plan) -> ConditionUpdate:
    if not plan.behind:
        text = "engines run what the spec and this version of the operator ask for"
        return ConditionUpdate(ENGINES_UP_TO_DATE, _TRUE, Reason.UP_TO_DATE, text)
    how = f"kubectl annotate -n {ctx.namespace} infsvc {ctx.name} --overwrite {contract.ANNOTATION_REFRESH}=$(date +%s)"
    text = f"a change would restart engines, so they keep what they have: {'; '.join(plan.behind)}; {how} replaces them"
    return ConditionUpdate(ENGINES_UP_TO_DATE, _FALSE, Reason.ENGINES_KEPT, text, Severity.NORMAL)


def _stalled(ctx: Context, plan: Plan, views: Mapping[str, RoleView], failures: Sequence[Failure]) -> ConditionUpdate:
    refusals = [f for f in failures if f.refused or f.reason == Reason.NAME_CONFLICT]
    if refusals:
        return ConditionUpdate(STALLED, _TRUE, refusals[0].reason, _what_is_refused(refusals))
    if plan.failed:
        return _failed(ctx, plan, plan.failed)
    problems = [v.problem for v in views.values() if v.problem]
    problem = next((p for p in problems if p.severity is Severity.STALLED), None)
    if problem:
        return ConditionUpdate(STALLED, _TRUE, problem.reason, problem.message)
    if plan.rollout.blocked and not ctx.spec.paused:
        return ConditionUpdate(STALLED, _TRUE, Reason.ROLLOUT_BLOCKED, plan.rollout.blocked)
    return ConditionUpdate(STALLED, _FALSE, Reason.PROGRESSING, "nothing waits for a person")


def _failed(ctx: Context, plan: Plan, failed: RolloutFailure) -> ConditionUpdate:
    stop = ctx.spec.rollout.on_failure is OnFailure.STOP
    old = _fallback(plan)
    what = f"it is stopped, and {old} goes on serving" if stop else f"{old} takes over again"
    text = f"revision {failed.revision} failed at {failed.since} ({failed.cause}), so {what}: {failed.text}"
    blocked = f"; {plan.rollout.blocked}" if plan.rollout.blocked else ""
    return ConditionUpdate(STALLED, _TRUE, Reason.ROLLOUT_FAILED if stop else Reason.ROLLED_BACK, f"{text}{blocked}")


def rollout_status(ctx: Context, plan: Plan, before: Mapping[str, Any], now: str) -> RolloutStatus | None:
    """`before`: as it is stored. Its time stays while the same rollout goes on."""
    if failed := plan.failed:
        stop = ctx.spec.rollout.on_failure is OnFailure.STOP
        state, old = RolloutState.STOPPED if stop else RolloutState.ROLLED_BACK, _fallback(plan)
        return RolloutStatus(
            state=state, revision=plan.revision, old_revision=old, reason=failed.cause, since=failed.since
        )
    if not plan.rollout.reason or ctx.spec.paused:
        return None
    same = before.get("state") == RolloutState.PROGRESSING and before.get("revision") == plan.revision
    return RolloutStatus(state=RolloutState.PROGRESSING, revision=plan.revision, since=before["since"] if same else now)


def _fallback(plan: Plan) -> str:
    return "-".join(plan.rollout.fallback.values())


def _what_is_refused(refusals: Sequence[Failure]) -> str:
    """Why the first is, and which others are, too: who mends one at a time learns of the next each time."""
    first, *others = refusals
    named = "".join(f"; also {f.kind} {f.name} ({f.reason})" for f in others[:REFUSALS_NAMED])
    more = f"; and {len(others) - REFUSALS_NAMED} more" if len(others) > REFUSALS_NAMED else ""
    return f"{first.kind} {first.name}: {first.message}{named}{more}"


def _is_unapplied(ctx: Context, plan: Plan, observed: Observed, before: Mapping[str, Any]) -> bool:
    """Whether the newest spec asks for what was not there when this pass looked. A paused service keeps its sizes, also
    those that its spec does not allow any more."""
    if not ctx.spec.paused:
        return bool(plan.changes) and before.get("observedGeneration") != ctx.generation
    asked = unpaused_sizes(ctx, observed)
    return bool(plan.changes) or any(asked[role].desired != size.desired for role, size in plan.sizes.items())


def _reconciling(
    ctx: Context,
    plan: Plan,
    views: Mapping[str, RoleView],
    failures: Sequence[Failure],
    stalled: ConditionUpdate,
    unapplied: bool,
) -> ConditionUpdate:
    """Never True beside Stalled: kstatus goes by the first of the two."""
    is_stalled = stalled.status is _TRUE
    if ctx.spec.paused:
        text = "what the spec asks for is not all there, and will not be" if unapplied else "nothing is changed"
        status = _TRUE if unapplied and not is_stalled else _FALSE
        return ConditionUpdate(RECONCILING, status, Reason.PAUSED, f"spec.paused is true: {text}")
    lacking = [v for v in views.values() if v.current < v.needed]
    if not (plan.rollout.reason or lacking or failures or unapplied):
        return ConditionUpdate(RECONCILING, _FALSE, Reason.RECONCILED, "what runs is what the spec asks for")
    if is_stalled:
        return ConditionUpdate(RECONCILING, _FALSE, stalled.reason, "stalled: see the condition Stalled")
    text = "; ".join([*_what_moves(plan, lacking, failures), *_what_is_in_the_way(plan, views, failures)])
    return ConditionUpdate(RECONCILING, _TRUE, Reason.ROLLING_OUT if plan.rollout.reason else Reason.PROGRESSING, text)


def _what_moves(plan: Plan, lacking: Sequence[RoleView], failures: Sequence[Failure]) -> list[str]:
    if plan.rollout.reason:
        return [plan.rollout.reason]
    if lacking:
        counts = ", ".join(f"{v.role} {v.current} of {v.needed}" for v in lacking)
        return [f"waiting for replicas of the newest spec: {counts}"]
    if failures:
        return [f"{len(failures)} objects are still to be written or deleted"]
    return ["what the newest spec asks for has just been written"]


def _what_is_in_the_way(plan: Plan, views: Mapping[str, RoleView], failures: Sequence[Failure]) -> list[str]:
    problem = next((v.problem for v in views.values() if v.problem), None)
    hint = f"; {problem.rollout_hint}" if problem and problem.rollout_hint and plan.rollout.old else ""
    of_pods = [f"{problem.reason}: {problem.message}{hint}"] if problem else []
    repeated = next((f for f in failures if f.count >= REPEATED), None)
    return [*of_pods, f"{repeated.kind} {repeated.name}: {repeated.message}"] if repeated else of_pods


def _ready(ctx: Context, parts: Sequence[ConditionUpdate], stalled: ConditionUpdate) -> ConditionUpdate:
    """The reason of the first condition that is False becomes its own, so that Ready says why. A pool at zero is as its
    spec asks.

    Its reason is a column of `kubectl get`, so a service that is paused says so there, whatever else is wrong.
    """
    missing = [
        p for p in parts if p.status is _FALSE and p.reason not in (Reason.SCALED_TO_ZERO, Reason.KV_PATH_FAILED)
    ]
    if missing and stalled.status is _TRUE:
        worst = replace(stalled, type=READY, status=_FALSE)
    elif missing:
        first = missing[0]
        worst = ConditionUpdate(READY, _FALSE, first.reason, f"{first.type}: {first.message}", first.severity)
    else:
        worst = _ready_update(parts, stalled)
    if ctx.spec.paused:
        text = f"spec.paused is true: nothing is changed; {worst.message}"
        return ConditionUpdate(READY, worst.status, Reason.PAUSED, text, Severity.NORMAL)
    return worst


def _ready_update(parts: Sequence[ConditionUpdate], stalled: ConditionUpdate) -> ConditionUpdate:
    """Decode answers requests also where prefill is at zero; where decode is, requests wait for a replica. A service
    that serves but is stalled, such as one whose newest spec is refused, says so."""
    reason, text = Reason.SERVING, "all pools and the router are ready"
    if any(p.type == DECODE_READY and p.reason == Reason.SCALED_TO_ZERO for p in parts):
        text = "no replica of decode is desired; with scaling.mode Auto the next request starts one"
        reason = Reason.SCALED_TO_ZERO
    if any(p.reason == Reason.KV_PATH_FAILED for p in parts):
        text = f"{text}; KV transfer fails between some pods, as the condition {KV_TRANSFER_READY} says"
    if stalled.status is _TRUE:
        return ConditionUpdate(READY, _TRUE, stalled.reason, f"{text}, but it is stalled: {stalled.message}")
    return ConditionUpdate(READY, _TRUE, reason, text)
