"""From a plan to a size_decision: which reason wins, and what people read. Pure; the table of reasons is in `policy`.

Imports `budget`, `decode`, `feedback`, `prefill`, `sizing`, `state` and `wording` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phasewise_operator.scaling.policy.budget import Grant
from phasewise_operator.scaling.policy.decode import ITL_UNATTAINABLE
from phasewise_operator.scaling.policy.feedback import Miss
from phasewise_operator.scaling.policy.format import counted, seconds
from phasewise_operator.scaling.policy.prefill import PROMPT_TOO_LONG
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


@dataclass(frozen=True)
class PoolSizing:
    """What one pool should have if there were no limits, with all that led to it."""

    pool: PoolState
    need: Need
    miss: Miss | None
    missed: bool
    """The miss is one that this pool can help."""
    stepped: bool
    """The size is larger than the model's because of the miss, now."""
    quiet: bool
    extra: int
    """Replicas beyond the model's that measured latency has asked for."""
    size: int
    enough: int
    """The smallest size that would do now."""
    stabilization: float
    whole: bool = True
    """Every pod of the service could be read."""


def concerned(needs: Mapping[str, Need], itl: Miss | None, ttft: Miss | None) -> dict[str, Miss]:
    """Which pool a miss is told of: its owner, or whose work takes so long. One that can be helped goes first."""
    misses: dict[str, Miss] = {}
    for miss in (m for m in (ttft, itl) if m):
        owner = miss.role or (PREFILL if miss.reason == PROMPT_TOO_LONG and PREFILL in needs else DECODE)
        if miss.role == PREFILL and not needs[PREFILL].curable:
            miss = Miss(None, needs[PREFILL].reason, needs[PREFILL].message)  # noqa: PLW2901
        if owner not in misses or (miss.role and not misses[owner].role):
            misses[owner] = miss
    return misses


def size_decision(plan: PoolSizing, granted: Grant) -> SizeDecision:
    """The size that is given, its reason and its message."""
    reason, message = _why(plan)
    if granted.limit and granted.size < plan.size:
        message = f"{message}; it has {granted.size} because {granted.limit}"
    elif granted.size > plan.size:
        message = f"{message}; {plan.pool.role}.replicas.min is {plan.pool.min}"
    limit = granted.kind or (NO_NODE if reason == UNSCHEDULABLE else "")
    return SizeDecision(granted.size, reason, message, limit, missed=plan.missed)


def _why(plan: PoolSizing) -> tuple[str, str]:
    if plan.size > plan.pool.desired:
        return _why_larger(plan)
    if plan.size < plan.pool.desired:
        return _why_smaller(plan)
    return _why_same(plan)


def _why_larger(plan: PoolSizing) -> tuple[str, str]:
    if plan.pool.desired == 0:
        return WOKEN, "Requests arrive and the pool has no replica"
    if plan.stepped and plan.miss:
        return plan.miss.reason, f"{plan.miss.message}: {counted(plan.size - plan.pool.desired, 'replica')} more"
    return plan.need.reason, plan.need.message + _with_extra(plan)


def _why_smaller(plan: PoolSizing) -> tuple[str, str]:
    time = seconds(plan.stabilization)
    if plan.quiet and plan.size <= plan.pool.min:
        return IDLE, f"No traffic for {time}"
    return LOAD_FELL, f"No more than {counted(plan.size, 'replica')} needed for {time}"


def _why_same(plan: PoolSizing) -> tuple[str, str]:
    """The first that holds."""
    pool, need, miss = plan.pool, plan.need, plan.miss
    out_of_reach = not need.curable and not plan.quiet and need.reason in {PROMPT_TOO_LONG, ITL_UNATTAINABLE}
    homeless = f"The scheduler finds no node for {counted(pool.unschedulable, 'pod')} of {pool.desired}"
    again = ": the size is judged again when it has been whole for an SLO window" if plan.missed else ""
    cases = (
        (plan.quiet and pool.desired <= pool.min, IDLE, "No traffic"),
        (out_of_reach, need.reason, need.message),
        (pool.unschedulable > 0, UNSCHEDULABLE, f"{homeless}: add nodes or free accelerators"),
        (
            pool.ready < pool.desired,
            STARTING,
            f"{pool.ready} of {counted(pool.desired, 'replica')} ready, the others are starting",
        ),
        (miss is not None, miss.reason if miss else "", f"{miss.message if miss else ''}{again}"),
        (
            max(plan.enough, pool.min) < pool.desired,
            STABILIZING,
            f"{_enough(plan)} would do; {_until(plan)}",
        ),
    )
    return next(((r, m) for holds, r, m in cases if holds), (WITHIN_TARGETS, need.message + _with_extra(plan)))


def _until(plan: PoolSizing) -> str:
    if not plan.whole:
        return "nothing is taken away while some pod of the service cannot be read"
    return f"taken away when that has held for {seconds(plan.stabilization)}"


def _enough(plan: PoolSizing) -> str:
    return counted(max(plan.enough, plan.pool.min), "replica")


def _with_extra(plan: PoolSizing) -> str:
    return f", and {plan.extra} more as measured latency has shown" if plan.extra > 0 else ""
