"""Conditions of an InferenceService: the table of all types and reasons, and an update before it has times. Pure.

`docs/architecture.md` shows the table, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from phasewise_operator.api.status import Condition, ConditionStatus
from phasewise_operator.kinds import Manifest
from phasewise_operator.reconcile import runbooks

READY: Final = "Ready"
MODEL_READY: Final = "ModelReady"
PREFILL_READY: Final = "PrefillReady"
DECODE_READY: Final = "DecodeReady"
ROUTER_READY: Final = "RouterReady"
KV_TRANSFER_READY: Final = "KVTransferReady"
SCALING_ACTIVE: Final = "ScalingActive"
SCALING_LIMITED: Final = "ScalingLimited"
ENGINES_UP_TO_DATE: Final = "EnginesUpToDate"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"

ABNORMAL_CONDITIONS: Final = (SCALING_LIMITED, RECONCILING, STALLED)
"""Conditions that are as they should be while they are False."""
LIVE_CONDITIONS: Final = (SCALING_ACTIVE, SCALING_LIMITED)
"""Conditions that follow the load: their messages carry figures, and a bound may apply now and not a moment later."""
LONGEST_MESSAGE: Final = 4096
"""Of a refusal that repeats a whole pod template, and stands in three conditions, nobody reads more."""


class Reason(StrEnum):
    """Reasons that the reconciler gives itself. Those of pods are in pod_problems.CHECKS, those of sizes in scaling."""

    SERVING = "Serving"
    REPLICAS_READY = "ReplicasReady"
    REPLICAS_STARTING = "ReplicasStarting"
    SCALED_TO_ZERO = "ScaledToZero"
    PODS_REFUSED = "PodsRefused"
    LOADED = "Loaded"
    LOADING = "Loading"
    TRANSFERRED = "Transferred"
    KV_PARAMETERS_MISSING = "KVParametersMissing"
    KV_PATH_FAILED = "KVPathFailed"
    KV_TRANSFER_FAILED = "KVTransferFailed"
    KV_UNPROVED = "KVUnproved"
    MEASURED = "Measured"
    EXTERNAL = "External"
    MANUAL = "Manual"
    PAUSED = "Paused"
    NO_MAXIMUM = "NoMaximum"
    WITHIN_BOUNDS = "WithinBounds"
    UP_TO_DATE = "UpToDate"
    ENGINES_KEPT = "EnginesKept"
    RECONCILED = "Reconciled"
    PROGRESSING = "Progressing"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_BLOCKED = "RolloutBlocked"
    ROLLOUT_FAILED = "RolloutFailed"
    ROLLED_BACK = "RolledBack"
    INVALID_SPEC = "InvalidSpec"
    INTERNAL_ERROR = "InternalError"
    NAME_CONFLICT = "NameConflict"
    APPLY_REFUSED = "ApplyRefused"
    CREATE_FAILED = "CreateFailed"
    CONTENDED = "Contended"
    CHILDREN_UNKNOWN = "ChildrenUnknown"
    DELETE_REFUSED = "DeleteRefused"


class Severity(StrEnum):
    """How bad the state behind a reason is. It decides the type of the Event, and whether the service is Stalled."""

    NORMAL = "passes by itself"
    WARNING = "is tried again"
    STALLED = "stalls until somebody acts"


@dataclass(frozen=True)
class ConditionRow:
    """What a condition's status means. `types`: conditions that mean the same, each for its own role."""

    types: tuple[str, ...]
    true: str
    false: str
    otherwise: str
    """When it is Unknown or absent; empty: never."""
    reasons: tuple[Reason, ...]
    """Of the reconciler's own reasons those that it has."""


CONDITIONS: Final = (
    ConditionRow(
        (READY,),
        "all pools (but those at zero, as the spec asks) and the router are ready, and KV does not fail to flow "
        "between all pods; while it is Stalled all the same, with that reason",
        "a pool or the router is not ready, or KV flows between no pods: the first of their reasons, or that of "
        "`Stalled`",
        "",
        (Reason.SERVING, Reason.SCALED_TO_ZERO, Reason.PAUSED, Reason.INVALID_SPEC, Reason.INTERNAL_ERROR),
    ),
    ConditionRow(
        (MODEL_READY,),
        "an engine of the desired revision is ready",
        "an engine said why it cannot load the model",
        "Unknown while it loads",
        (Reason.LOADED, Reason.LOADING),
    ),
    ConditionRow(
        (PREFILL_READY, DECODE_READY, ROUTER_READY),
        "of a pool at least `replicas.min` replicas are ready, and one if any is desired, so a pool that grows stays "
        "ready; of the router all `router.replicas`",
        "fewer are ready; the reason is the pods'",
        "`PrefillReady` is absent without a prefill pool",
        (Reason.REPLICAS_READY, Reason.REPLICAS_STARTING, Reason.SCALED_TO_ZERO, Reason.PODS_REFUSED),
    ),
    ConditionRow(
        (KV_TRANSFER_READY,),
        "KV flows between prefill and decode wherever the routers have tried it, with canaries and with requests; the "
        "message has the evidence and when the last transfer was proved",
        "the last try between two pods failed: with `KVPathFailed` others work, requests are routed round the failed "
        "ones and the service is Ready; with the other reasons none works",
        "Unknown before the first try; absent without a prefill pool",
        (
            Reason.TRANSFERRED,
            Reason.KV_PATH_FAILED,
            Reason.KV_TRANSFER_FAILED,
            Reason.KV_PARAMETERS_MISSING,
            Reason.KV_UNPROVED,
        ),
    ),
    ConditionRow(
        (SCALING_ACTIVE,),
        "sizes follow what is measured (Auto) or a PoolScaler (External)",
        "the mode is Manual; or no pool has `replicas.max` above `replicas.min`; or the service is paused; "
        "or too little is known and the sizes are held, with scaling's reason",
        "",
        (Reason.MEASURED, Reason.EXTERNAL, Reason.MANUAL, Reason.NO_MAXIMUM, Reason.PAUSED),
    ),
    ConditionRow(
        (SCALING_LIMITED,),
        "a bound, the budget or the scheduler keeps a pool from the size it should have, with scaling's reason",
        "nothing does",
        "",
        (Reason.WITHIN_BOUNDS,),
    ),
    ConditionRow(
        (ENGINES_UP_TO_DATE,),
        "engine pods are made as this version of the operator makes them",
        "they are kept as they are, since a change would restart them: by an upgrade of the operator, another default "
        "image, or an edit that needs no new pods; the message names the fields",
        "",
        (Reason.UP_TO_DATE, Reason.ENGINES_KEPT),
    ),
    ConditionRow(
        (RECONCILING,),
        "the newest spec is not everywhere yet; with reason `Paused` it will not be before `spec.paused` is false",
        "it is, or nothing moves because the service is Stalled",
        "",
        (
            Reason.PROGRESSING,
            Reason.ROLLING_OUT,
            Reason.RECONCILED,
            Reason.PAUSED,
            Reason.CHILDREN_UNKNOWN,
            Reason.INVALID_SPEC,
            Reason.INTERNAL_ERROR,
        ),
    ),
    ConditionRow(
        (STALLED,),
        "nothing will change until somebody acts",
        "otherwise",
        "",
        (
            Reason.PROGRESSING,
            Reason.NAME_CONFLICT,
            Reason.APPLY_REFUSED,
            Reason.CREATE_FAILED,
            Reason.CONTENDED,
            Reason.DELETE_REFUSED,
            Reason.PODS_REFUSED,
            Reason.ROLLOUT_BLOCKED,
            Reason.ROLLOUT_FAILED,
            Reason.ROLLED_BACK,
            Reason.CHILDREN_UNKNOWN,
            Reason.INVALID_SPEC,
            Reason.INTERNAL_ERROR,
        ),
    ),
)


OWN_TYPES: Final = frozenset(name for row in CONDITIONS for name in row.types)


@dataclass(frozen=True)
class ConditionUpdate:
    """A condition before it has times."""

    type: str
    status: ConditionStatus
    reason: str
    message: str
    severity: Severity = Severity.WARNING
    """Of a condition that is not as it should be."""
    provisional: bool = False
    """Nothing has been measured yet: what was reported earlier stays until something is."""

    @property
    def is_good(self) -> bool:
        """As it should be."""
        return (self.status is ConditionStatus.TRUE) != (self.type in ABNORMAL_CONDITIONS)

    def full_message(self, longest: int = LONGEST_MESSAGE) -> str:
        """With whose fault it is and where to read on, where it is not as it should be. In the first line, which is all
        that `kubectl get` shows; others are of a log."""
        end = "" if self.is_good else runbooks.pointer(self.reason)
        first, *log = self.message.split("\n", 1)
        return _cut("\n".join([_cut(first, longest - len(end)) + end, *log]), longest)


def conditions(updates: Sequence[ConditionUpdate], generation: int, before: Manifest, now: str) -> list[Condition]:
    """As they are written. A condition whose status is as in the status `before` keeps its transition time."""
    known = {c["type"]: c for c in before.get("conditions", [])}
    return [
        Condition.model_validate(known[u.type])
        if u.provisional and u.type in known
        else _condition(u, known.get(u.type), generation, now)
        for u in updates
    ]


def _condition(update: ConditionUpdate, before: Manifest | None, generation: int, now: str) -> Condition:
    same = before is not None and before["status"] == update.status.value
    return Condition(
        type=update.type,
        status=update.status,
        reason=update.reason,
        message=update.full_message(),
        observed_generation=generation,
        last_transition_time=before["lastTransitionTime"] if before and same else now,
    )


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def conditions_table() -> str:
    """CONDITIONS as the Markdown table of docs/architecture.md."""
    lines = ["| condition | True | False | Unknown or absent | its own reasons |", "|---|---|---|---|---|"]
    for row in CONDITIONS:
        types, reasons = (", ".join(f"`{name}`" for name in names) for names in (row.types, row.reasons))
        lines.append(f"| {types} | {row.true} | {row.false} | {row.otherwise} | {reasons} |")
    return "\n".join(lines) + "\n"
