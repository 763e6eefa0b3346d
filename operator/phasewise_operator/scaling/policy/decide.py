"""The decision: how many replicas each pool should have, and why. Pure: `now` is an argument, all memory is a value.

signals -> trust (is enough known?) -> load -> prefill, decode (the models' sizes) + feedback (what was measured) ->
descent (not down yet?) -> budget (bounds, scheduler, GPUs) -> decisions. Imports deps of `scaling` and names only.

Reasons. Of those that hold, the first in this table is a decision's:

| reason                             | the pool                                                                        |
|------------------------------------|---------------------------------------------------------------------------------|
| NoSignal, NoRouter, Stale,         | is held: too little is known (`trust`)                                          |
| Unreadable                         |                                                                                 |
| Woken                              | gets its first replica: requests wait for one                                   |
| PrefillLoad, Backlog               | prefill grows: prompts arrive faster, or wait behind others                     |
| DecodeLoad                         | decode grows: more streams than fit within the ITL target                       |
| KvCacheFull, DecodeAdmission       | decode grows: for room, before or while requests wait for it                    |
| TtftMissed, ItlMissed              | grows since measured latency says that the model's size is not enough           |
| Idle                               | has no traffic: goes to its minimum, or is there                                |
| LoadFell                           | shrinks: fewer were enough for the whole stabilization                          |
| PromptTooLong                      | prefill alone takes longer than the TTFT target: more replicas would not help   |
| ItlUnattainable                    | one stream alone misses the ITL target: replicas only keep ITL near that        |
| Unschedulable                      | waits for nodes                                                                 |
| Starting                           | waits for replicas asked for already                                            |
| TtftMissed, ItlMissed              | stays although a target is missed: the message says why                         |
| Stabilizing                        | fewer would do now; they must have done for the whole stabilization             |
| WithinTargets                      | is right                                                                        |

PromptTooLong is also the reason where the pool grows to keep up with such prompts, as far as stability asks for it.
A bound, the budget or the scheduler never hides the reason: `limit` names it, and the message ends with what to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phasewise_operator.scaling.policy import (
    arrivals,
    correction,
    decode,
    feedback,
    prefill,
    prompts,
    reasons,
)
from phasewise_operator.scaling.policy.budget import Proposal, grant
from phasewise_operator.scaling.policy.data_quality import Insufficient, usable, whole
from phasewise_operator.scaling.policy.feedback import Miss
from phasewise_operator.scaling.policy.load import Load, measure
from phasewise_operator.scaling.policy.memory import Memory, PoolMemory
from phasewise_operator.scaling.policy.reasons import PoolSizing
from phasewise_operator.scaling.policy.sizing import Need
from phasewise_operator.scaling.policy.stabilization import highest, remember, without_gap
from phasewise_operator.scaling.types import PoolState, Signals, SizeDecision, SloTargets
from phasewise_runtime.contract import DECODE, PREFILL

__all__ = ["Memory", "PolicyResult", "decide"]


@dataclass(frozen=True)
class PolicyResult:
    """What to do, and what to hand in at the next call."""

    decisions: Mapping[str, SizeDecision]
    """By role."""
    memory: Memory


def decide(
    now: float,
    targets: SloTargets,
    pools: Sequence[PoolState],
    signals: Signals | None,
    budget: int | None,
    stabilization: float,
    memory: Memory,
) -> PolicyResult:
    """The size of each pool, from what is known at `now`. `pools`: prefill and decode, or decode alone."""
    memory = correction.retarget(memory, targets, now)
    memory = replace(memory, pools={p.role: _recall(memory.pools.get(p.role), p, now) for p in pools})
    known = usable(now, pools, signals)
    if isinstance(known, Insufficient):
        return _hold(now, pools, known, budget, stabilization, memory)
    view, memory = _look(now, targets, pools, known, memory)
    plans: list[PoolSizing] = []
    for pool in pools:
        plan, remembered = _plan(now, pool, view, stabilization, memory.pools[pool.role])
        plans.append(plan)
        memory = replace(memory, pools={**memory.pools, pool.role: remembered})
    grants = grant([Proposal(p.pool, p.size, p.missed) for p in plans], budget)
    decisions = {p.pool.role: reasons.size_decision(p, grants[p.pool.role]) for p in plans}
    return PolicyResult(decisions, _given(memory, decisions))


def _recall(memory: PoolMemory | None, pool: PoolState, now: float) -> PoolMemory:
    settled = correction.settle(memory, pool, now)
    return replace(settled, asked=without_gap(settled.asked, now))


@dataclass(frozen=True)
class _View:
    """What one look at the signals says of all pools."""

    load: Load
    needs: Mapping[str, Need]
    misses: Mapping[str, Miss]
    """By role: the miss that concerns the pool, curable by it or not."""
    settled: frozenset[str]
    """Pools that have been whole, and without a backlog, for long enough to judge by what was measured."""
    whole: bool


def _hold(
    now: float,
    pools: Sequence[PoolState],
    doubt: Insufficient,
    budget: int | None,
    stabilization: float,
    memory: Memory,
) -> PolicyResult:
    """Nothing changes but for the bounds: a user's change of bounds is not a guess."""
    grants = grant([Proposal(p, p.desired) for p in pools], budget)
    decisions = {
        role: SizeDecision(g.size, doubt.reason, doubt.message, g.kind, sufficient=False) for role, g in grants.items()
    }
    held = {
        p.role: replace(
            memory.pools[p.role],
            asked=remember(memory.pools[p.role].asked, p.desired, now, stabilization),
        )
        for p in pools
    }
    return PolicyResult(decisions, _given(replace(memory, pools=held, blocked=0.0), decisions))


def _look(
    now: float, targets: SloTargets, pools: Sequence[PoolState], signals: Signals, memory: Memory
) -> tuple[_View, Memory]:
    """Learn from the signals, ask the models, and judge what was measured."""
    by_role = {p.role: p for p in pools}
    load = measure(signals, by_role[DECODE].batch)
    elapsed = min(load.window, now - memory.at) if memory.at is not None else load.window
    decode_blocked = decode.counted_blocked(load, memory.blocked, targets)
    room = decode.learn_room(memory.room, load, decode_blocked, now)
    decode_full = decode.full(load, decode_blocked)
    # A queue while some pool has no pod yet, or while decode is full, is not prefill's.
    queue_counts = not decode_full and all(p.ready for p in pools)
    behind = prefill.waiting(load, by_role[PREFILL].ready, queue_counts) if PREFILL in by_role else 0.0
    memory = replace(
        memory,
        at=now,
        prompts=prompts.learn(memory.prompts, load, signals.parts, elapsed, behind > 0),
        law=decode.learn(memory.law, signals.pools.get(DECODE), elapsed, load.window),
        outputs=decode.learn_outputs(memory.outputs, load, targets, elapsed),
        arrivals=arrivals.steady(memory.arrivals, load.arrivals, load.window, elapsed),
        room=room,
        blocked=load.decode.blocked,
    )
    rate, pool = memory.arrivals or 0.0, by_role[DECODE]
    needs = {DECODE: decode.need(load, targets, rate, memory.outputs, memory.law, room, pool, decode_blocked)}
    if PREFILL in by_role:
        needs[PREFILL] = prefill.need(load, targets, rate, memory.prompts, by_role[PREFILL], behind)
    itl = ttft = None
    if correction.judged_anew(memory, now, signals.slo_window):
        itl = feedback.itl_miss(signals, load, targets, attainable=needs[DECODE].curable)
        # What waited in the SLO window but does no more needs no replica now.
        waits = behind > 0 or load.decode.blocked > 0 or load.queued > 0 or any(load.overdue.values())
        if waits and all(p.ready for p in pools):
            ttft = feedback.ttft_miss(signals, load, targets, decode_full=decode_full, prefill_waits=behind > 0)
    if PREFILL in by_role and not prefill.judgeable(load, by_role[PREFILL].ready, behind):
        unsettled = replace(memory.pools[PREFILL], settled_since=None)
        memory = replace(memory, pools={**memory.pools, PREFILL: unsettled})
    view = _View(
        load=load,
        needs=needs,
        misses=reasons.concerned(needs, itl, ttft),
        settled=frozenset(p.role for p in pools if correction.settled(memory.pools[p.role], now, signals.slo_window)),
        whole=whole(signals),
    )
    return view, memory


def _plan(
    now: float, pool: PoolState, view: _View, stabilization: float, memory: PoolMemory
) -> tuple[PoolSizing, PoolMemory]:
    """The size of one pool before any limit, and what to remember of it."""
    need, miss = view.needs[pool.role], view.misses.get(pool.role)
    missed = miss is not None and miss.role == pool.role
    # ITL is made by decode alone, TTFT by both.
    concerned = {pool.role} if miss and miss.reason == feedback.ITL_MISSED else view.needs.keys()
    stepped = missed and view.settled >= concerned and not pool.unschedulable and need.size <= pool.desired
    if stepped:
        memory = replace(memory, correction=correction.learn(memory.correction, need, pool, now))
    up, slack = correction.apply(memory.correction, need, now)
    if not view.load.quiet:
        up, slack = max(1, up), max(1, slack)
    asked = max(slack, pool.desired) if missed or not memory.asked else slack
    asked_all = remember(memory.asked, max(up, asked), now, stabilization)
    peak = highest(asked_all)
    size = up if up > pool.desired else max(up, min(peak, pool.desired)) if view.whole else pool.desired
    plan = PoolSizing(
        pool=pool,
        need=need,
        miss=miss,
        missed=missed,
        stepped=stepped,
        quiet=view.load.quiet,
        extra=up - max(need.size, 0 if view.load.quiet else 1),
        size=size,
        enough=max(up, slack),
        stabilization=stabilization,
        whole=view.whole,
    )
    return plan, replace(memory, asked=asked_all)


def _given(memory: Memory, decisions: Mapping[str, SizeDecision]) -> Memory:
    """A pool that is given another size is judged anew, even where its replicas are ready at once."""
    pools = {role: correction.given(m, decisions[role].desired) for role, m in memory.pools.items()}
    return replace(memory, pools=pools)
