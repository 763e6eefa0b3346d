"""From updates to the status that is written, and whether it is worth a write. Pure; `now` is an argument.

A status that differs in messages, measured figures or the progress of a start alone is written only now and then: see
`write_pause`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from phasewise_operator.api.durations import Duration
from phasewise_operator.api.status import (
    InferenceServiceStatus,
    ModelStatus,
    RoleStatus,
    RouterStatus,
    ScalingDecision,
    ScalingStatus,
    SloMeasure,
    SloStatus,
)
from phasewise_operator.kinds import POOL_SCALER, Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile import kv_condition
from phasewise_operator.reconcile.conditions import (
    KV_TRANSFER_READY,
    LIVE_CONDITIONS,
    MODEL_READY,
    OWN_TYPES,
    SCALING_ACTIVE,
    SCALING_LIMITED,
    ConditionUpdate,
    Reason,
    conditions,
)
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.reconcile.report import ROLE_CONDITIONS, rollout_status
from phasewise_operator.reconcile.role_views import RoleView
from phasewise_operator.render.children import scaler_name, scaler_status
from phasewise_operator.render.context import Context
from phasewise_operator.render.router import service_url
from phasewise_operator.scaling.policy.data_quality import NO_ROUTER, NO_SIGNAL
from phasewise_operator.scaling.policy.reasons import BOUNDS, RESUMED
from phasewise_operator.scaling.types import FIGURES_SECONDS, Latency, Recommendation, SizeDecision
from phasewise_runtime import contract

DECISIONS: Final = 5
PROGRESS_SECONDS: Final = 5.0
"""Between two writes that say no more than how far a start has come: a service has some ten such steps in its first
seconds."""
MOVE: Final = 0.1
"""A figure that moved by less than this share is the same."""
MESSAGE_SECONDS: Final = 5.0
"""A message that alone differs is written at most so often: it may hold what is another each time, such as an id."""
STALE_SECONDS: Final = 300.0
"""A figure that was measured so long ago is not shown in the summary any more."""
START_REASONS: Final = {
    **dict.fromkeys(ROLE_CONDITIONS.values(), (Reason.REPLICAS_STARTING, Reason.REPLICAS_READY)),
    MODEL_READY: (Reason.LOADING, Reason.LOADED),
    KV_TRANSFER_READY: (Reason.KV_UNPROVED, Reason.TRANSFERRED),
    SCALING_ACTIVE: (NO_SIGNAL, NO_ROUTER, Reason.MEASURED, Reason.NO_MAXIMUM),
}
"""Reasons by which a condition follows the start of a service: a change between them alone is progress."""
_COUNTS: Final = ("ready", "pending", "summary", "reason")
RESUMED_DECISION: Final = (RESUMED, "decided and carried out just before the operator was restarted")


def status_of(
    ctx: Context,
    plan: Plan,
    observed: Observed,
    views: Mapping[str, RoleView],
    updates: Sequence[ConditionUpdate],
    recommendation: Recommendation,
    live: Manifest,
    now: str,
) -> Manifest:
    """The status of a live service as JSON. What is as in its status before keeps its times."""
    before, generation = live.get("status", {}), live["metadata"]["generation"]
    pools = _pool_statuses(plan, observed, views, before)
    router, slo, signals = views[contract.ROUTER], ctx.spec.slo, recommendation.signals
    known = before.get("slo", {})
    status = InferenceServiceStatus(
        observed_generation=generation,
        conditions=conditions(updates, generation, before, now),
        url=service_url(ctx),
        model=ModelStatus(name=ctx.model_name),
        revision=plan.revision,
        fingerprint=plan.engines[-1].fingerprint,
        rollout=rollout_status(ctx, plan, before.get("rollout", {}), now),
        prefill=pools.get(contract.PREFILL),
        decode=pools.get(contract.DECODE),
        router=RouterStatus(replicas=router.desired, ready=router.ready),
        slo=SloStatus(
            ttft=_measure(slo.ttft, signals.ttft if signals else None, known.get("ttft", {}), now),
            itl=_measure(slo.itl, signals.itl if signals else None, known.get("itl", {}), now),
        ),
        scaling=ScalingStatus(decisions=decisions(plan, before, now)),
    )
    return status.to_json()


def _pool_statuses(
    plan: Plan, observed: Observed, views: Mapping[str, RoleView], before: Manifest
) -> dict[str, RoleStatus]:
    pools: dict[str, RoleStatus] = {}
    for engine in plan.engines:
        role, view = engine.role, views[engine.role]
        known = before.get(role, {})
        unmeasured = plan.sizes[role].reason == NO_SIGNAL  # as with conditions: what was reported earlier stays
        pools[role] = RoleStatus(
            desired=view.desired,
            ready=view.ready,
            pending=view.pending,
            revision=engine.revision,
            observed_revision=observed_revision(observed, role, engine.revision, known.get("observedRevision")),
            summary=f"{view.ready}/{view.desired}",
            reason=known.get("reason", NO_SIGNAL) if unmeasured else plan.sizes[role].reason,
        )
    return pools


def observed_revision(observed: Observed, role: str, desired: str, before: str | None) -> str | None:
    """The desired revision when all its replicas are ready, or when it has a ready one and no other is left; until then
    the one `before`. None: no revision of the pool has been ready yet.
    """
    workloads = [w for w in observed.workloads if w.role == role]
    ready = {w.revision for w in workloads if w.current > 0}
    complete = [w.revision for w in workloads if w.current >= w.replicas > 0]
    if desired in complete or (desired in ready and {w.revision for w in workloads} == {desired}):
        return desired
    return before or (complete[-1] if complete else None)


def _measure(target: Duration, latency: Latency | None, before: Manifest, now: str) -> SloMeasure:
    """Without a new sample the last one stays, with its time; in the summary until it is stale."""
    if latency is not None:
        shown = _duration(latency.at_attainment)
        return SloMeasure(target=target, measured=shown, last_sample_time=now, summary=f"{shown}/{target}")
    measured, at = before.get("measured"), before.get("lastSampleTime")
    known = None if measured is None else Duration(measured)
    fresh = known if _age(at, now) < STALE_SECONDS else None
    return SloMeasure(target=target, measured=known, last_sample_time=at, summary=f"{fresh or '-'}/{target}")


def _age(time: str | None, now: str) -> float:
    """In seconds. RFC 3339, UTC."""
    if time is None:
        return math.inf
    return (datetime.fromisoformat(now) - datetime.fromisoformat(time)).total_seconds()


def stale_in(status: Manifest, now: str) -> float | None:
    """Seconds until a figure in a summary is stale, if it is not measured again; None: none is shown."""
    shown = [m for m in status.get("slo", {}).values() if _is_shown(m)]
    return max(0.0, STALE_SECONDS - max(_age(m.get("lastSampleTime"), now) for m in shown)) if shown else None


def _duration(seconds: float) -> Duration:
    """To three significant digits, in the unit people would write."""
    if seconds < 1:
        return Duration(f"{float(f'{seconds * 1000:.3g}'):g}ms")
    return Duration(f"{float(f'{seconds:.3g}'):g}s")


def decisions(plan: Plan, before: Manifest, now: str) -> list[ScalingDecision]:
    """The last changes of size, newest first: those of the status before, and those that this plan makes."""
    known = [ScalingDecision.model_validate(d) for d in before.get("scaling", {}).get("decisions", [])]
    fresh: list[ScalingDecision] = []
    for role, size in plan.sizes.items():
        last = next((d.to for d in known if d.role == role), before.get(role, {}).get("desired"))
        if last is not None and last != size.desired:
            reason, message = _why(size)
            fresh.append(
                ScalingDecision(
                    time=now, role=role, before=last, to=size.desired, reason=reason, message=message[:1024]
                )
            )
    return _newest([*fresh, *known])


def _why(size: SizeDecision) -> tuple[str, str]:
    """A size that is held did not change because of measurement: either a bound moved it, or it changed before a
    restart and the status was not written any more."""
    if size.sufficient:
        return size.reason, size.message
    return (BOUNDS, size.bound) if size.bound else RESUMED_DECISION


def _newest(changes: Sequence[ScalingDecision]) -> list[ScalingDecision]:
    """The newest DECISIONS entries, but always each pool's latest: the next pass compares its size with that."""
    latest = [next((d for d in changes if d.role == role), None) for role in contract.ENGINE_ROLES]
    places = DECISIONS - sum(d is not None and d not in changes[:DECISIONS] for d in latest)
    return [d for n, d in enumerate(changes) if n < places or d in latest]


def scaler_statuses(ctx: Context, observed: Observed) -> list[Manifest]:
    """The statuses of PoolScalers that are not up to date, as they are to be written."""
    outdated: list[Manifest] = []
    for role in ctx.pools:
        live = observed.child(POOL_SCALER, scaler_name(ctx, role))
        if live is not None:
            pods = sum(p.role == role and not p.deleting for p in observed.pods)
            desired = scaler_status(ctx, role, live, pods)
            if live.get("status") != desired["status"]:
                outdated.append(desired)
    return outdated


def write_pause(before: Manifest, after: Manifest) -> float | None:
    """Seconds that must have passed since the last write before this change is written; None: it is not worth one.

    A change in anything but progress, messages and measured figures is written at once. Figures count if they have
    moved or the messages about them have changed. That KV was handed over later than it says is a figure, too.
    """
    if _state(before) != _state(after):
        return PROGRESS_SECONDS if is_progress(before, after) else 0.0
    if _messages(before) != _messages(after):
        return MESSAGE_SECONDS
    moved = _figures_moved(before.get("slo", {}), after.get("slo", {})) or kv_condition.is_older(before, after)
    return FIGURES_SECONDS if moved or _live_messages(before) != _live_messages(after) else None


def is_progress(before: Manifest, after: Manifest) -> bool:
    """Whether nothing but counts of pods and messages differ, and conditions that come and go while a service starts.

    What a person or a program waits for is more than that: Ready, Stalled and Reconciling, a failure, another size.
    """
    return bool(before) and _stage(before) == _stage(after)


def _stage(status: Manifest) -> Manifest:
    conditions = {c["type"]: (c["status"], c["reason"]) for c in _own_conditions(status)}
    settled = {name: state for name, state in conditions.items() if state[1] not in START_REASONS.get(name, ())}
    counted = (*contract.ENGINE_ROLES, contract.ROUTER)
    pools = {role: {**status[role], **dict.fromkeys(_COUNTS, "")} for role in counted if role in status}
    targets = {name: measure["target"] for name, measure in status.get("slo", {}).items()}
    return {**status, **pools, "slo": targets, "conditions": settled}


def _state(status: Manifest) -> Manifest:
    """Without figures, messages, and conditions that are somebody else's."""
    slo = {name: measure["target"] for name, measure in status.get("slo", {}).items()}
    kept = [c for c in _own_conditions(status) if c["type"] != SCALING_LIMITED or not _follows_load(status)]
    pools = {role: {**status[role], "reason": ""} for role in contract.ENGINE_ROLES if role in status}
    return {**status, **pools, "slo": slo, "conditions": {c["type"]: {**c, "message": ""} for c in kept}}


def _messages(status: Manifest) -> dict[str, str]:
    own = [c for c in _own_conditions(status) if not _is_measured(c)]
    return {c["type"]: kv_condition.without_time(c["message"]) for c in own}


def _is_measured(condition: Manifest) -> bool:
    """Its message has figures that move with the load; where KV flows, how many paths were used so far."""
    measured = condition["type"] in LIVE_CONDITIONS
    return measured or (condition["type"], condition["reason"]) == (KV_TRANSFER_READY, Reason.TRANSFERRED)


def _own_conditions(status: Manifest) -> list[Manifest]:
    return [c for c in status.get("conditions", []) if c["type"] in OWN_TYPES]


def _follows_load(status: Manifest) -> bool:
    """What the pools need is measured, so whether a bound limits it changes with the load."""
    measured = (Reason.MEASURED, Reason.NO_MAXIMUM)
    return any(c["type"] == SCALING_ACTIVE and c["reason"] in measured for c in status.get("conditions", []))


def _live_messages(status: Manifest) -> list[str]:
    live = [c for c in status.get("conditions", []) if _is_measured(c)]
    messages = [f"{c['status']} {c['reason']}: {kv_condition.without_time(c['message'])}" for c in live]
    return [*messages, *(status.get(role, {}).get("reason", "") for role in contract.ENGINE_ROLES)]


def _figures_moved(before: Manifest, after: Manifest) -> bool:
    """Figures that stay the same are written again before what is stored of them looks stale."""
    for name, measure in after.items():
        known = before.get(name, {})
        if _moved(known.get("measured"), measure.get("measured")) or _is_shown(known) != _is_shown(measure):
            return True
        at = measure.get("lastSampleTime")
        if at and _age(known.get("lastSampleTime"), at) >= STALE_SECONDS:
            return True
    return False


def _is_shown(measure: Manifest) -> bool:
    return not measure.get("summary", "-/").startswith("-/")


def _moved(before: str | None, after: str | None) -> bool:
    if before is None or after is None:
        return before != after
    old, new = Duration(before).seconds, Duration(after).seconds
    return abs(new - old) > MOVE * old
