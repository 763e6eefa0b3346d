"""The decision: how many replicas each pool should have, and why. Pure: `now` is an argument, all memory is a value.

signals -> data_quality (do they suffice?) -> load (sums over pods) -> prefill, decode (what the models need) +
feedback, correction (what measured latency adds) -> stabilization, holds (not down yet?) -> budget (bounds, scheduler,
GPUs) -> reasons -> decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phasewise_operator.scaling.policy import correction, decode, feedback, prefill, reasons
from phasewise_operator.scaling.policy.budget import DesiredSize, allowed_sizes
from phasewise_operator.scaling.policy.data_quality import Insufficient, complete, usable
from phasewise_operator.scaling.policy.feedback import Miss
from phasewise_operator.scaling.policy.holds import HoldContext, hold_on
from phasewise_operator.scaling.policy.load import Load, aggregate, steady_arrivals
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
    """The size of each pool at `now`. `pools`: prefill and decode, or decode only."""
    memory = correction.retarget(memory, targets, now)
    memory = replace(memory, pools={p.role: _recall(memory.pools.get(p.role), p, now) for p in pools})
    sufficient = usable(now, pools, signals)
    if isinstance(sufficient, Insufficient):
        return _keep_sizes(now, pools, sufficient, budget, stabilization, memory)
    view, memory = _view(now, targets, pools, sufficient, memory)
    sizings: list[PoolSizing] = []
    for pool in pools:
        sizing, remembered = _size(now, pool, view, stabilization, memory.pools[pool.role])
        sizings.append(sizing)
        memory = replace(memory, pools={**memory.pools, pool.role: remembered})
    allowed = allowed_sizes([DesiredSize(s.pool, s.desired, s.missed) for s in sizings], budget)
    decisions = {s.pool.role: reasons.size_decision(s, allowed[s.pool.role]) for s in sizings}
    return PolicyResult(decisions, _given(memory, decisions))


def _recall(memory: PoolMemory | None, pool: PoolState, now: float) -> PoolMemory:
    settled = correction.settle(memory, pool, now)
    return replace(settled, past_needs=without_gap(settled.past_needs, now))


@dataclass(frozen=True)
class _Waiting:
    """Requests that wait for others."""

    prefill: float
    """Prompts that wait behind others."""
    decode: float
    """Requests blocked at decode admission, those that merely pass by left out."""
    decode_full: bool


@dataclass(frozen=True)
class _View:
    """What the signals of one call say of all pools."""

    load: Load
    needs: Mapping[str, Need]
    misses: Mapping[str, Miss]
    """By role: the miss that concerns the pool, curable by it or not."""
    settled: frozenset[str]
    """Pools that have been complete, and without a backlog, for long enough to judge by what was measured."""
    complete: bool
    """Every pod of the service that should answer could be read."""


def _keep_sizes(
    now: float,
    pools: Sequence[PoolState],
    why: Insufficient,
    budget: int | None,
    stabilization: float,
    memory: Memory,
) -> PolicyResult:
    """Nothing changes but for the bounds: a user's change of bounds is not a guess."""
    allowed = allowed_sizes([DesiredSize(p, p.desired) for p in pools], budget)
    decisions = {
        role: SizeDecision(g.size, why.reason, why.message, g.kind, sufficient=False) for role, g in allowed.items()
    }
    kept = {
        p.role: replace(
            memory.pools[p.role],
            past_needs=remember(memory.pools[p.role].past_needs, p.desired, now, stabilization),
        )
        for p in pools
    }
    return PolicyResult(decisions, _given(replace(memory, pools=kept, blocked=0.0), decisions))


def _view(
    now: float, targets: SloTargets, pools: Sequence[PoolState], signals: Signals, memory: Memory
) -> tuple[_View, Memory]:
    """Learn from the signals, ask the models, and judge what was measured."""
    by_role = {p.role: p for p in pools}
    load = aggregate(signals, by_role[DECODE].batch)
    waiting = _waiting(load, targets, by_role, memory)
    memory = _learn(now, targets, signals, load, waiting, memory)
    needs = _needs(targets, load, waiting, by_role, memory)
    misses = _misses(now, targets, pools, signals, load, waiting, needs, memory)
    if PREFILL in by_role and not prefill.judgeable(load, by_role[PREFILL].ready, waiting.prefill):
        unsettled = replace(memory.pools[PREFILL], settled_since=None)
        memory = replace(memory, pools={**memory.pools, PREFILL: unsettled})
    settled = frozenset(p.role for p in pools if correction.settled(memory.pools[p.role], now, signals.slo_window))
    return _View(load, needs, misses, settled, complete(signals)), memory


def _waiting(load: Load, targets: SloTargets, by_role: Mapping[str, PoolState], memory: Memory) -> _Waiting:
    blocked = decode.counted_blocked(load, memory.blocked, targets)
    decode_full = decode.full(load, blocked)
    # A queue while some pool has no pod yet, or while decode is full, is not prefill's.
    queue_counts = not decode_full and all(p.ready for p in by_role.values())
    behind = prefill.waiting(load, by_role[PREFILL].ready, queue_counts) if PREFILL in by_role else 0.0
    return _Waiting(behind, blocked, decode_full)


def _learn(now: float, targets: SloTargets, signals: Signals, load: Load, waiting: _Waiting, memory: Memory) -> Memory:
    elapsed = min(load.window, now - memory.at) if memory.at is not None else load.window
    return replace(
        memory,
        at=now,
        prompts=prefill.learn(memory.prompts, load, signals.parts, elapsed, waiting.prefill > 0),
        law=decode.learn(memory.law, signals.pools.get(DECODE), elapsed, load.window),
        outputs=decode.learn_outputs(memory.outputs, load, targets, elapsed),
        arrivals=steady_arrivals(memory.arrivals, load.arrivals, load.window, elapsed),
        capacity=decode.learn_capacity(memory.capacity, load, waiting.decode, now),
        blocked=load.decode.blocked,
    )


def _needs(
    targets: SloTargets, load: Load, waiting: _Waiting, by_role: Mapping[str, PoolState], memory: Memory
) -> dict[str, Need]:
    """By role, what the model of each pool asks for."""
    needs = {
        DECODE: decode.need(
            load,
            targets,
            by_role[DECODE],
            arrivals=memory.arrivals or 0.0,
            outputs=memory.outputs,
            law=memory.law,
            capacity=memory.capacity,
            blocked=waiting.decode,
        )
    }
    if PREFILL in by_role:
        needs[PREFILL] = prefill.need(
            load,
            targets,
            by_role[PREFILL],
            arrivals=memory.arrivals or 0.0,
            prompts=memory.prompts,
            behind=waiting.prefill,
        )
    return needs


def _misses(
    now: float,
    targets: SloTargets,
    pools: Sequence[PoolState],
    signals: Signals,
    load: Load,
    waiting: _Waiting,
    needs: Mapping[str, Need],
    memory: Memory,
) -> Mapping[str, Miss]:
    """By role, the miss of a target that concerns it."""
    if not correction.judged_anew(memory, now, signals.slo_window):
        return {}
    itl = feedback.itl_miss(signals, load, targets, attainable=needs[DECODE].curable)
    ttft = None
    # Requests that waited in the SLO window but no longer do need no replica now.
    waits = waiting.prefill > 0 or load.decode.blocked > 0 or load.queued > 0 or any(load.overdue.values())
    if waits and all(p.ready for p in pools):
        ttft = feedback.ttft_miss(
            signals, load, targets, decode_full=waiting.decode_full, prefill_waits=waiting.prefill > 0
        )
    return reasons.concerned(needs, itl, ttft)


def _size(
    now: float, pool: PoolState, view: _View, stabilization: float, memory: PoolMemory
) -> tuple[PoolSizing, PoolMemory]:
    """The size of one pool before any limit, and what to remember of it."""
    need, miss = view.needs[pool.role], view.misses.get(pool.role)
    missed = miss is not None and miss.role == pool.role
    # ITL is made by decode alone, TTFT by both.
    concerned = {pool.role} if miss and miss.reason == feedback.ITL_MISSED else view.needs.keys()
    stepped = missed and view.settled >= concerned and not pool.unschedulable and need.replicas <= pool.desired
    if stepped:
        memory = replace(memory, correction=correction.learn(memory.correction, need, pool, now))
    needed, with_slack = correction.apply(memory.correction, need, now)
    if not view.load.quiet:
        needed, with_slack = max(1, needed), max(1, with_slack)
    # A missed target needs at least what runs; so does the first call, which has watched nothing yet.
    at_least = max(with_slack, pool.desired) if missed or not memory.past_needs else with_slack
    memory = replace(memory, past_needs=remember(memory.past_needs, max(needed, at_least), now, stabilization))
    hold = None
    desired = needed
    if needed < pool.desired:
        hold = hold_on(pool, HoldContext(memory, stabilization, view.complete), now)
        desired = pool.desired if hold else max(needed, highest(memory.past_needs))
    sizing = PoolSizing(
        pool=pool,
        need=need,
        miss=miss,
        missed=missed,
        stepped=stepped,
        quiet=view.load.quiet,
        extra=needed - max(need.replicas, 0 if view.load.quiet else 1),
        desired=desired,
        needed=max(needed, with_slack),
        stabilization=stabilization,
        hold=hold,
    )
    return sizing, memory


def _given(memory: Memory, decisions: Mapping[str, SizeDecision]) -> Memory:
    """A pool that is given another size is judged anew, even where its replicas are ready at once."""
    pools = {role: correction.given(m, decisions[role].desired) for role, m in memory.pools.items()}
    return replace(memory, pools=pools)
