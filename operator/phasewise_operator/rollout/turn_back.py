"""What goes on where the revision that the spec asks for has failed: an old one that served. Pure.

Turning back is a rollout like any other, as if the spec asked for the old revision. Where a failed rollout only stops,
the old one is planned in the same way, beside failed pods that keep their places: those that serve a part of the pool,
others, whose logs somebody may want to read, as long as nobody needs their GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import Rollout, plan_rollout
from phasewise_operator.rollout.state import NO_BUDGET, DesiredRevision
from phasewise_runtime import contract

Keys = Mapping[tuple[str, str], int]


def fallback(desired: Sequence[DesiredRevision], running: Sequence[RunningRevision]) -> tuple[RunningRevision, ...]:
    """The best old revision that served, one of each of its roles; empty: there is none.

    Of a role that a change left alone, or whose old pods are gone, it is the desired revision itself: with a KV
    fingerprint that stayed the same they work together."""
    new = {(d.role, d.revision) for d in desired}
    # A prefill pool that is to have no pods never serves, and is not missed.
    empty = {d.role for d in desired if not d.replicas} - {contract.DECODE}
    old = [r for r in running if (r.role, r.revision) not in new and (r.role in empty or r.served)]
    old = [r for r in old if r.replicas or r.planned or r.role in empty]
    found = [_group(fingerprint, desired, running, old) for fingerprint in dict.fromkeys(r.fingerprint for r in old)]
    return max(filter(None, found), key=_worth, default=())


def _group(
    fingerprint: str,
    desired: Sequence[DesiredRevision],
    running: Sequence[RunningRevision],
    old: Sequence[RunningRevision],
) -> tuple[RunningRevision, ...]:
    """The best of each role; empty where one is missing."""
    same = {(d.role, d.revision) for d in desired if d.fingerprint == fingerprint}
    kept = [r for r in running if (r.role, r.revision) in same]
    mine = [r for r in old if r.fingerprint == fingerprint]
    mine.sort(key=lambda r: (r.ready > 0, r.planned, r.ready))
    best = {r.role: r for r in (*kept, *mine)}
    aggregated = contract.DECODE in best and best[contract.DECODE].aggregated
    roles = (contract.DECODE,) if aggregated else contract.ENGINE_ROLES
    return tuple(best[role] for role in roles) if best.keys() >= set(roles) else ()


def _worth(group: Sequence[RunningRevision]) -> tuple[bool, bool, int]:
    ready = min(r.ready for r in group)
    return ready > 0, all(r.planned for r in group), ready


def plan_fallback(
    desired: Sequence[DesiredRevision],
    back: Sequence[RunningRevision],
    running: Sequence[RunningRevision],
    gpu_budget: int | None,
    allow_downtime: bool = False,
    keep_failed: bool = False,
) -> Rollout:
    """`desired`: what failed. `back`: what fallback() found. `keep_failed`: its pods are left as they are, rather than
    replaced by those of the old revision."""
    size = {r.role: r.replicas for r in back} | {d.role: d.replicas for d in desired}
    planned = {(r.role, r.revision) for r in back}
    failed = [r for r in running if (r.role, r.revision) in {(d.role, d.revision) for d in desired} - planned]
    kept: Keys = {}
    if keep_failed:
        size, kept = _beside(size, back, failed, gpu_budget)
        running = [r for r in running if r not in failed]
        held = sum(_gpus_held(r, kept[r.role, r.revision]) for r in failed)
        gpu_budget = None if gpu_budget is None else gpu_budget - held
    aim = [DesiredRevision(r.role, r.revision, r.fingerprint, size[r.role], r.gpus) for r in back]
    rollout = plan_rollout(aim, running, gpu_budget, allow_downtime)
    replicas = {(r.role, r.revision): rollout.current[r.role] for r in back} | dict(rollout.old) | dict(kept)
    new = {(d.role, d.revision) for d in desired}
    return replace(
        rollout,
        current={d.role: replicas.get((d.role, d.revision), 0) for d in desired},
        old={key: count for key, count in replicas.items() if key not in new},
        reason="the new revision has failed, and an old one goes on in its place",
        fallback={r.role: r.revision for r in back},
    )


def _beside(
    size: Mapping[str, int], back: Sequence[RunningRevision], failed: Sequence[RunningRevision], budget: int | None
) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Sizes of the old revision's pools, and replicas of the failed one that stay beside them. Where the old needs
    their GPUs, first those go that do not serve, and then those that the old has taken over from. No pod of a
    pool of one may be evicted: one on a drained node goes from here, when an old one is ready."""
    old = {r.role: r for r in back}
    alike = {r.fingerprint for r in back} == {r.fingerprint for r in failed}
    paired = alike or all(r.ready for r in failed if size[r.role])
    leaving = {r.role: r.leaving if size[r.role] == 1 else 0 for r in failed}
    share = {r.role: max(0, r.ready - leaving[r.role]) if paired else 0 for r in failed}
    last = {r.role for r in back if r.role == contract.DECODE and not r.ready}
    serving = {r.role: r.ready if r.role in last else share[r.role] for r in failed}
    sizes = {role: max(n - share.get(role, 0), min(n, old[role].replicas)) for role, n in size.items() if role in old}
    most = NO_BUDGET if budget is None else budget
    room = most - sum(sizes[role] * r.gpus for role, r in old.items())
    kept = {r.role: min(r.replicas - r.unschedulable, size[r.role]) for r in failed}
    kept |= {role: max(0, kept[role] - n) for role, n in leaving.items() if n and role in old and old[role].ready}

    def fits() -> bool:
        return sum(kept[r.role] * r.gpus for r in failed) <= room

    if not fits() or any(r.unschedulable for r in back):
        kept = {role: min(count, serving[role]) for role, count in kept.items()}
    if not fits() and all(r.ready for r in back if size[r.role]):
        complete = all(r.ready >= size[r.role] for r in back)
        lacking = {r.role: max(0, size[r.role] - r.ready) if alike else 0 for r in back}
        kept = {role: min(n, lacking.get(role, 0)) if alike or complete else n for role, n in kept.items()}
    return sizes, {(r.role, r.revision): kept[r.role] for r in failed}


def _gpus_held(revision: RunningRevision, replicas: int) -> int:
    live = revision.pods - revision.terminating
    return (revision.terminating + max(live, replicas + revision.surge)) * revision.gpus
