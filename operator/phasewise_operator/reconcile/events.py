"""Events on an InferenceService: which changes are worth one, and how it is written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from phasewise_operator.api.status import ConditionStatus, ScalingDecision
from phasewise_operator.kinds import EVENT, Manifest
from phasewise_operator.reconcile.conditions import (
    KV_TRANSFER_READY,
    LIVE_CONDITIONS,
    READY,
    SCALING_ACTIVE,
    STALLED,
    ConditionUpdate,
    Reason,
    Severity,
)
from phasewise_runtime import contract

_LONGEST_NOTE: Final = 1000
"""The API server refuses 1024 bytes and more."""


def changed_conditions(updates: Sequence[ConditionUpdate], before: Manifest) -> list[ConditionUpdate]:
    """Updates worth an Event: readiness, being stalled or scaling has changed since the status `before`, or why; or KV
    transfer fails between some pods, of which Ready says nothing."""
    known = {c["type"]: (c["status"], c["reason"]) for c in before.get("conditions", [])}
    return [
        u
        for u in updates
        if u.type in (READY, STALLED, KV_TRANSFER_READY, *LIVE_CONDITIONS)
        and not u.provisional
        and known.get(u.type) != (u.status.value, u.reason)
        and _is_worth_an_event(u, u.type in known)
    ]


def _is_worth_an_event(update: ConditionUpdate, known: bool) -> bool:
    """A condition that appears for the first time gets an Event only if it is not as it should be."""
    if update.type == SCALING_ACTIVE:
        return known
    if update.type == KV_TRANSFER_READY:
        return update.reason == Reason.KV_PATH_FAILED
    return update.type == READY or update.status is ConditionStatus.TRUE or (known and update.type == STALLED)


def fresh_decisions(before: Manifest, after: Manifest) -> list[ScalingDecision]:
    """Decisions of the status `after` that are not in the status `before`, oldest first."""
    known = before.get("scaling", {}).get("decisions", [])
    fresh = [d for d in after.get("scaling", {}).get("decisions", []) if d not in known]
    return [ScalingDecision.model_validate(d) for d in reversed(fresh)]


def condition_event(live: Manifest, update: ConditionUpdate, now: str) -> Manifest:
    normal = update.is_good or update.severity is Severity.NORMAL
    return _event(live, "Reconcile", update.reason, update.full_message(_LONGEST_NOTE), normal, now)


def decision_event(live: Manifest, decision: ScalingDecision, now: str) -> Manifest:
    """One Event for each change of size; `kubectl describe` shows those of the same name and reason together."""
    action = "ScaleUp" if decision.to > decision.before else "ScaleDown"
    text = f"{decision.role} from {decision.before} to {decision.to}: {decision.message}"
    return _event(live, action, decision.reason, text, True, now)


def _event(live: Manifest, action: str, reason: str, note: str, normal: bool, now: str) -> Manifest:
    meta = live["metadata"]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"generateName": f"{meta['name']}-", "namespace": meta["namespace"]},
        "eventTime": now.replace("Z", ".000000Z"),
        "type": "Normal" if normal else "Warning",
        "reason": reason,
        "action": action,
        "note": note.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
        "reportingController": f"{contract.API_GROUP}/operator",
        "reportingInstance": contract.FIELD_MANAGER,
        "regarding": {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
    }
