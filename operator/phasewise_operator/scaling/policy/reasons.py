"""From the sizing of a pool to its decision: which reason wins, and what people read. Pure.

REASONS is the one list of reasons. Of those that hold, the first is the decision's; but a target that is missed without
any growth comes after Starting. A bound, the budget or the scheduler never hides the reason: `limit` names it, and the
message ends with what to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from phasewise_operator.scaling.policy.budget import AllowedSize
from phasewise_operator.scaling.policy.data_quality import NO_ROUTER, NO_SIGNAL, STALE, UNREADABLE
from phasewise_operator.scaling.policy.decode import DECODE_ADMISSION, DECODE_LOAD, ITL_UNATTAINABLE, KV_CACHE_FULL
from phasewise_operator.scaling.policy.feedback import ITL_MISSED, TTFT_MISSED, Miss
from phasewise_operator.scaling.policy.format import counted, seconds
from phasewise_operator.scaling.policy.prefill import BACKLOG, PREFILL_LOAD, PROMPT_TOO_LONG
from phasewise_operator.scaling.policy.sizing import Need
from phasewise_operator.scaling.types import NO_NODE, PoolState, SizeDecision
from phasewise_runtime.contract import DECODE, PREFILL

WOKEN = "Woken"
IDLE = "Idle"
LOAD_FELL = "LoadFell"
UNSCHEDULABLE = NO_NODE
STARTING = "Starting"
STABILIZING = "Stabilizing"
WITHIN_TARGETS = "WithinTargets"
# Given by reconcile/status to changes of size that no measurement made.
BOUNDS = "Bounds"
RESUMED = "Resumed"

_HELD = "is held: the data do not suffice to decide"
_PROMPTS = "prefill grows: prompts arrive faster, or wait behind others"
_ADMISSION = "decode grows: its KV cache fills up, or requests wait for decode admission"
_MISSED = "grows: the target is missed although the model's size is enough; or the message says why nothing grows"
_OUT_OF_REACH = (
    "meets its target with no number of replicas: they keep up with prompts, keep ITL near that of one stream"
)
REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys((NO_SIGNAL, NO_ROUTER, STALE, UNREADABLE), _HELD),
    WOKEN: "gets its first replica, since requests wait for one",
    **dict.fromkeys((PREFILL_LOAD, BACKLOG), _PROMPTS),
    DECODE_LOAD: "decode grows: more streams than fit within the ITL target",
    **dict.fromkeys((KV_CACHE_FULL, DECODE_ADMISSION), _ADMISSION),
    **dict.fromkeys((TTFT_MISSED, ITL_MISSED), _MISSED),
    IDLE: "shrinks to its minimum, or is there, without traffic",
    LOAD_FELL: "shrinks: fewer replicas were enough for the full stabilization",
    **dict.fromkeys((PROMPT_TOO_LONG, ITL_UNATTAINABLE), _OUT_OF_REACH),
    UNSCHEDULABLE: "waits for nodes",
    STARTING: "waits for replicas that start",
    STABILIZING: "needs fewer replicas; the message says what holds back the scale-down",
    WITHIN_TARGETS: "is right",
    BOUNDS: "was moved by a change of `replicas.min`, `replicas.max` or `gpuBudget`, whatever is measured",
    RESUMED: "was given this size just before the operator was started anew",
}
"""What each says of the pool; the table of docs/scaling.md is the same."""


@dataclass(frozen=True)
class PoolSizing:
    """The size that a pool should have if there were no limits, with all that led to it."""

    pool: PoolState
    need: Need
    miss: Miss | None
    missed: bool
    """The miss is one that this pool can help."""
    stepped: bool
    """The size is larger than the model's because of the miss, now."""
    quiet: bool
    extra: int
    """Replicas beyond the model's that measured latency has shown to be needed."""
    desired: int
    needed: int
    """The smallest size that would do now."""
    stabilization: float
    hold: str | None = None
    """What holds back a scale-down (`holds`); None: nothing does, or no fewer replicas are needed."""


def concerned(needs: Mapping[str, Need], itl: Miss | None, ttft: Miss | None) -> dict[str, Miss]:
    """By role, the miss that its decision speaks of. One that a replica would help goes before one that none would."""
    misses: dict[str, Miss] = {}
    for miss in (m for m in (ttft, itl) if m):
        owner = miss.role or (PREFILL if miss.reason == PROMPT_TOO_LONG and PREFILL in needs else DECODE)
        if miss.role == PREFILL and not needs[PREFILL].curable:
            miss = Miss(None, needs[PREFILL].reason, needs[PREFILL].message)  # noqa: PLW2901
        if owner not in misses or (miss.role and not misses[owner].role):
            misses[owner] = miss
    return misses


def size_decision(sizing: PoolSizing, allowed: AllowedSize) -> SizeDecision:
    """The size that is given, its reason and its message."""
    reason, message = _why(sizing)
    if allowed.limit and allowed.size < sizing.desired:
        message = f"{message}; it has {allowed.size} because {allowed.limit}"
    elif allowed.size > sizing.desired:
        message = f"{message}; {sizing.pool.role}.replicas.min is {sizing.pool.min}"
    limit = allowed.kind or (NO_NODE if reason == UNSCHEDULABLE else "")
    return SizeDecision(allowed.size, reason, message, limit, missed=sizing.missed)


def _why(sizing: PoolSizing) -> tuple[str, str]:
    if sizing.desired > sizing.pool.desired:
        return _why_larger(sizing)
    if sizing.desired < sizing.pool.desired:
        return _why_smaller(sizing)
    return _why_same(sizing)


def _why_larger(sizing: PoolSizing) -> tuple[str, str]:
    if sizing.pool.desired == 0:
        return WOKEN, "Requests arrive and the pool has no replica"
    if sizing.stepped and sizing.miss:
        return (
            sizing.miss.reason,
            f"{sizing.miss.message}: {counted(sizing.desired - sizing.pool.desired, 'replica')} more",
        )
    return sizing.need.reason, sizing.need.message + _with_extra(sizing)


def _why_smaller(sizing: PoolSizing) -> tuple[str, str]:
    time = seconds(sizing.stabilization)
    if sizing.quiet and sizing.desired <= sizing.pool.min:
        return IDLE, f"No traffic for {time}"
    return LOAD_FELL, f"No more than {counted(sizing.desired, 'replica')} needed for {time}"


def _why_same(sizing: PoolSizing) -> tuple[str, str]:
    """The first that holds."""
    pool, need, miss = sizing.pool, sizing.need, sizing.miss
    needed = max(sizing.needed, pool.min)
    out_of_reach = not need.curable and not sizing.quiet and need.reason in {PROMPT_TOO_LONG, ITL_UNATTAINABLE}
    homeless = f"The scheduler finds no node for {counted(pool.unschedulable, 'pod')} of {pool.desired}"
    again = ": the size is judged again when it has been complete for an SLO window" if sizing.missed else ""
    cases = (
        (sizing.quiet and pool.desired <= pool.min, IDLE, "No traffic"),
        (out_of_reach, need.reason, need.message),
        (pool.unschedulable > 0, UNSCHEDULABLE, f"{homeless}: add nodes or free accelerators"),
        (
            pool.ready < pool.desired,
            STARTING,
            f"{pool.ready} of {counted(pool.desired, 'replica')} ready, the others are starting",
        ),
        (miss is not None, miss.reason if miss else "", f"{miss.message if miss else ''}{again}"),
        (
            needed < pool.desired,
            STABILIZING,
            f"{counted(needed, 'replica')} would do; {sizing.hold}",
        ),
    )
    return next(((r, m) for holds, r, m in cases if holds), (WITHIN_TARGETS, need.message + _with_extra(sizing)))


def _with_extra(sizing: PoolSizing) -> str:
    return f", and {sizing.extra} more as measured latency has shown" if sizing.extra > 0 else ""
