"""What kstatus makes of an object: the rules that Flux, kpt, Argo CD's health checks and `helm --wait` go by.

After `Compute`, `checkGenericProperties` and `checkReadyCondition` of sigs.k8s.io/cli-utils, pkg/kstatus/status
(generic.go at 3219511 and the status.go that asks for Ready too, since 2020). A custom resource has no rules of its own
there, so what stands here is all that is asked of one.
"""

from __future__ import annotations

from enum import StrEnum

from phasewise_operator.kinds import Manifest


class KStatus(StrEnum):
    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    CURRENT = "Current"
    TERMINATING = "Terminating"


def kstatus(live: Manifest) -> KStatus:
    """Of the first that applies; an object that shows none of it is taken for Current."""
    meta, status = live["metadata"], live.get("status", {})
    if meta.get("deletionTimestamp"):
        return KStatus.TERMINATING
    if status.get("observedGeneration", meta["generation"]) != meta["generation"]:
        return KStatus.IN_PROGRESS
    conditions = status.get("conditions", [])
    for condition in conditions:  # in their order: of an object that is both, the first counts
        if condition["status"] == "True" and condition["type"] == "Reconciling":
            return KStatus.IN_PROGRESS
        if condition["status"] == "True" and condition["type"] == "Stalled":
            return KStatus.FAILED
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "True")
    return KStatus.CURRENT if ready == "True" else KStatus.IN_PROGRESS
