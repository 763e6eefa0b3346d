"""Events on an InferenceService: what changed in its conditions, and each change of a pool's size. Pure."""

from __future__ import annotations

from phasewise_operator.api.status import ConditionStatus, ScalingDecision
from phasewise_operator.kinds import EVENT, Manifest
from phasewise_operator.reconcile.report import ConditionUpdate
from phasewise_runtime import contract

_HARMLESS = ("ReplicasStarting", "Unschedulable", "NoRouter")
"""Reasons for not being ready that pass by themselves."""


def condition_event(live: Manifest, update: ConditionUpdate, now: str) -> Manifest:
    holds = update.status is ConditionStatus.TRUE
    good = holds == (update.type in ("Ready", "ScalingActive"))
    return _event(live, "Reconcile", update.reason, update.message, good or update.reason in _HARMLESS, now)


def decision_event(live: Manifest, decision: ScalingDecision, now: str) -> Manifest:
    """One for each change: by its name and reason alike ones are told together by whoever lists Events."""
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
        "note": note.encode()[:1000].decode(errors="ignore"),
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
