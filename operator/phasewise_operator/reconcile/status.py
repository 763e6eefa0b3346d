"""From updates to the status that is written, and to what is worth an Event. Pure; `now` is an argument.

A status that differs in measured figures alone is written only now and then: see `should_write`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from phasewise_operator.api.durations import Duration
from phasewise_operator.api.status import (
    Condition,
    ConditionStatus,
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
from phasewise_operator.reconcile.plan import Plan
from phasewise_operator.reconcile.report import MEASURED, ConditionUpdate, role_views
from phasewise_operator.render.children import scaler_name, scaler_status
from phasewise_operator.render.context import Context
from phasewise_operator.render.router import service_url
from phasewise_operator.scaling.policy.data_quality import NO_SIGNAL
from phasewise_operator.scaling.policy.reasons import BOUNDS, RESUMED
from phasewise_operator.scaling.types import FIGURES_SECONDS, Latency, Recommendation, SizeDecision
from phasewise_runtime import contract

DECISIONS: Final = 5
MOVE: Final = 0.1
"""A figure that moved by less than this share is the same."""
LIVE_CONDITIONS: Final = ("ScalingActive", "ScalingLimited")
"""Conditions that follow the load: their messages carry figures, and a bound comes into the way and goes again."""
RESUMED_DECISION: Final = (RESUMED, "decided and carried out just before the operator was started anew")


def status_of(
    ctx: Context,
    plan: Plan,
    observed: Observed,
    updates: Sequence[ConditionUpdate],
    recommendation: Recommendation,
    generation: int,
    before: Manifest,
    now: str,
) -> Manifest:
    """The whole status as JSON; conditions whose status is as before keep their time."""
    views = role_views(ctx, plan, observed)
    revisions = {e.role: e.revision for e in plan.engines}
    router = views.pop(contract.ROUTER)
    pools = {
        role: RoleStatus(
            desired=v.desired,
            ready=v.ready,
            pending=v.pending,
            revision=revisions[role],
            summary=f"{v.ready}/{v.desired}",
            reason=plan.sizes[role].reason,
        )
        for role, v in views.items()
    }
    slo, signals, known = ctx.spec.slo, recommendation.signals, before.get("slo", {})
    status = InferenceServiceStatus(
        observed_generation=generation,
        conditions=conditions(updates, generation, before, now),
        url=service_url(ctx),
        model=ModelStatus(name=ctx.model_name),
        revision="-".join(revisions.values()),
        fingerprint=plan.engines[-1].fingerprint,
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


def conditions(updates: Sequence[ConditionUpdate], generation: int, before: Manifest, now: str) -> list[Condition]:
    known = {c["type"]: c for c in before.get("conditions", [])}
    kept = [name for name in LIVE_CONDITIONS if name in known] if _is_too_early(updates) else []
    return [
        Condition.model_validate(known[v.type]) if v.type in kept else _condition(v, known.get(v.type), generation, now)
        for v in updates
    ]


def _condition(update: ConditionUpdate, before: Manifest | None, generation: int, now: str) -> Condition:
    same = before is not None and before["status"] == update.status.value
    return Condition(
        type=update.type,
        status=update.status,
        reason=update.reason,
        message=update.message,
        observed_generation=generation,
        last_transition_time=before["lastTransitionTime"] if before and same else now,
    )


def news(updates: Sequence[ConditionUpdate], before: Manifest) -> list[ConditionUpdate]:
    """Verdicts worth an Event: Ready, Stalled or what scaling can do changed, or the reason for it."""
    known = {c["type"]: (c["status"], c["reason"]) for c in before.get("conditions", [])}
    told = [v for v in updates if v.type in ("Ready", "Stalled", *LIVE_CONDITIONS)]
    if _is_too_early(updates):
        told = [v for v in told if v.type not in LIVE_CONDITIONS]
    return [v for v in told if known.get(v.type) != (v.status.value, v.reason) and _is_told(v, v.type in known)]


def _is_too_early(updates: Sequence[ConditionUpdate]) -> bool:
    """The loop has just begun to look: what was said of scaling before holds until it knows, in a few seconds."""
    return any(v.type == "ScalingActive" and v.reason == NO_SIGNAL for v in updates)


def _is_told(update: ConditionUpdate, known: bool) -> bool:
    """Of a condition that appears only what is not as it should be; that nothing is in scaling's way is no news."""
    if update.type == "ScalingActive":
        return known
    return update.type == "Ready" or update.status is ConditionStatus.TRUE or (known and update.type == "Stalled")


def _measure(target: Duration, latency: Latency | None, before: Manifest, now: str) -> SloMeasure:
    """Without a new sample the last one stays, with its time."""
    if latency is None:
        measured, at = before.get("measured"), before.get("lastSampleTime")
        shown = None if measured is None else Duration(measured)
    else:
        shown, at = _duration(latency.at_attainment), now
    return SloMeasure(target=target, measured=shown, last_sample_time=at, summary=f"{shown or '-'}/{target}")


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
    return _last([*fresh, *known])


def _why(size: SizeDecision) -> tuple[str, str]:
    """Of a size that is held only a bound can have moved it now; else it is the status that comes late."""
    if size.sufficient:
        return size.reason, size.message
    return (BOUNDS, size.bound) if size.bound else RESUMED_DECISION


def _last(told: Sequence[ScalingDecision]) -> list[ScalingDecision]:
    """So many, and each pool's last one among them: by it the next change is told from no change."""
    latest = [next((d for d in told if d.role == role), None) for role in contract.ENGINE_ROLES]
    room = DECISIONS - sum(d is not None and d not in told[:DECISIONS] for d in latest)
    return [d for n, d in enumerate(told) if n < room or d in latest]


def fresh_decisions(before: Manifest, after: Manifest) -> list[ScalingDecision]:
    """Those of the status after that are not in the one before, oldest first."""
    known = before.get("scaling", {}).get("decisions", [])
    told = [d for d in after.get("scaling", {}).get("decisions", []) if d not in known]
    return [ScalingDecision.model_validate(d) for d in reversed(told)]


def scaler_statuses(ctx: Context, observed: Observed) -> list[Manifest]:
    """Statuses of PoolScalers that say something else than what is."""
    found: list[Manifest] = []
    for role in ctx.pools:
        live = observed.child(POOL_SCALER, scaler_name(ctx, role))
        if live is not None:
            pods = sum(p.role == role and not p.deleting for p in observed.pods)
            desired = scaler_status(ctx, role, live, pods)
            if live.get("status") != desired["status"]:
                found.append(desired)
    return found


def should_write(before: Manifest, after: Manifest, since: float) -> bool:
    """Whether a status is worth a write, `since` seconds after the last one.

    Anything but measured figures is at once; these when they have moved, or when what is said of them has changed.
    """
    if _without_figures(before) != _without_figures(after):
        return True
    if since < FIGURES_SECONDS:
        return False
    figures = before.get("slo", {}), after.get("slo", {})
    moved = any(_moved(figures[0].get(name, {}).get("measured"), m.get("measured")) for name, m in figures[1].items())
    return moved or _said(before) != _said(after)


def _without_figures(status: Manifest) -> Manifest:
    slo = {name: measure["target"] for name, measure in status.get("slo", {}).items()}
    told = [_without_load(c) for c in status.get("conditions", []) if not (_is_measured(status) and _is_bound(c))]
    pools = {role: {**status[role], "reason": ""} for role in contract.ENGINE_ROLES if role in status}
    return {**status, **pools, "slo": slo, "conditions": told}


def _is_measured(status: Manifest) -> bool:
    return any(c["type"] == "ScalingActive" and c["reason"] == MEASURED for c in status.get("conditions", []))


def _is_bound(condition: Manifest) -> bool:
    """With sizes that follow the load, bounds come into the way and go again by themselves."""
    return condition["type"] == "ScalingLimited"


def _without_load(condition: Manifest) -> Manifest:
    return {**condition, "message": ""} if condition["type"] in LIVE_CONDITIONS else condition


def _said(status: Manifest) -> list[str]:
    told = [c for c in status.get("conditions", []) if c["type"] in LIVE_CONDITIONS]
    messages = [f"{c['status']} {c['reason']}: {c['message']}" for c in told]
    return [*messages, *(status.get(role, {}).get("reason", "") for role in contract.ENGINE_ROLES)]


def _moved(before: str | None, after: str | None) -> bool:
    if before is None or after is None:
        return before != after
    was, now = Duration(before).seconds, Duration(after).seconds
    return abs(now - was) > MOVE * was
