"""Which revision of a pool gets how many replicas next. Pure.

Pods of different KV fingerprints cannot serve one request together. So a change that keeps the fingerprint replaces
one pool, replica by replica; one that changes it brings up a whole new pair of pools beside the old, and the old goes
when the new can take all the traffic. Where a GPU budget does not hold both, the old goes first.

The answer follows from what is observed alone, so a change of mind half-way is no special case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phasewise_operator.observed import RunningRevision, gpus_held


@dataclass(frozen=True)
class DesiredRevision:
    """A role as the spec has it now."""

    role: str
    revision: str
    fingerprint: str
    replicas: int
    gpus: int
    """GPUs a replica."""


@dataclass(frozen=True)
class Rollout:
    current: Mapping[str, int]
    """Replicas of the desired revision, by role."""
    old: Mapping[tuple[str, str], int]
    """Replicas of every other revision that stays, by role and revision; what is not named goes."""
    reason: str
    """Empty where nothing is under way."""


def plan_rollout(
    desired: Sequence[DesiredRevision], running: Sequence[RunningRevision], gpu_budget: int | None
) -> Rollout:
    now = {(r.role, r.revision): r for r in running}
    old = [r for r in running if r.revision not in {w.revision for w in desired if w.role == r.role}]
    if not old:
        return Rollout({w.role: w.replicas for w in desired}, {}, "")
    if gpu_budget is not None and gpus_held(old) + sum(w.replicas * w.gpus for w in desired) > gpu_budget:
        beside = _as_large_as_fits(desired, now, old, gpu_budget)
        if beside is None:
            return _release_first(desired, now, old, gpu_budget)
        desired = beside
    complete = all(_ready(now, w) >= min(w.replicas, _serving_replicas(old, w.role)) for w in desired)
    kept: dict[tuple[str, str], int] = {}
    for new in desired:
        for former in (r for r in old if r.role == new.role):
            replicas = 0 if complete else _keep(new, former, _ready(now, new))
            if replicas > 0:
                kept[former.role, former.revision] = replicas
    return Rollout({w.role: w.replicas for w in desired}, kept, "" if complete else _reason(old, kept))


def _reason(old: Sequence[RunningRevision], kept: Mapping[tuple[str, str], int]) -> str:
    """While the new revision is not ready."""
    stays = [r for r in old if (r.role, r.revision) in kept]
    if any(r.ready for r in stays):
        return "the new revision comes up beside the old, which goes on serving until it is ready"
    if stays:
        return "the new revision comes up beside the old, which has served and is kept, but is not ready"
    return "the new revision replaces one that never served"


def _serving_replicas(old: Sequence[RunningRevision], role: str) -> int:
    """Ready replicas of the old revisions: so many new ones can take all their traffic, and need not wait for more."""
    return max(1, sum(r.ready for r in old if r.role == role))


def _as_large_as_fits(
    desired: Sequence[DesiredRevision],
    now: Mapping[tuple[str, str], RunningRevision],
    old: Sequence[RunningRevision],
    budget: int,
) -> list[DesiredRevision] | None:
    """A pool that grows in mid-rollout grows as far as the budget allows, so that the old revisions need not go first.

    None: the new revision is not yet as large as the old, or does not fit beside it even at the size that it has.
    """
    found = [now.get((w.role, w.revision)) for w in desired]
    has = [min(w.replicas, f.replicas) if f else 0 for w, f in zip(desired, found, strict=True)]
    free = budget - gpus_held(old) - sum(n * w.gpus for n, w in zip(has, desired, strict=True))
    if free < 0 or any(n < sum(r.replicas for r in old if r.role == w.role) for n, w in zip(has, desired, strict=True)):
        return None
    fitted: list[DesiredRevision] = []
    for new, replicas in zip(desired, has, strict=True):
        more = new.replicas - replicas if new.gpus == 0 else min(new.replicas - replicas, free // new.gpus)
        free -= more * new.gpus
        fitted.append(replace(new, replicas=replicas + more))
    return fitted


def _ready(now: Mapping[tuple[str, str], RunningRevision], new: DesiredRevision) -> int:
    found = now.get((new.role, new.revision))
    return found.ready if found else 0


def _keep(new: DesiredRevision, old: RunningRevision, ready: int) -> int:
    """Replicas that an old revision keeps. One that never served goes at once; one of the same fingerprint is replaced
    replica by replica; one that served but is not ready now stays, for it may be the only one that can serve again."""
    if old.ready == 0 and not old.served:
        return 0
    if old.fingerprint == new.fingerprint:
        return max(0, min(old.replicas, new.replicas - ready))
    return old.replicas


def _release_first(
    desired: Sequence[DesiredRevision],
    now: Mapping[tuple[str, str], RunningRevision],
    old: Sequence[RunningRevision],
    budget: int,
) -> Rollout:
    """The old goes at once; the new takes, in the order of the roles, the GPUs that its pods have left. It never
    shrinks. Replicas of the old that are not pods yet do not count here: they are not created any more."""
    free = budget - sum(r.pods * r.gpus for r in old)
    current: dict[str, int] = {}
    for new in desired:
        fits = new.replicas if new.gpus == 0 else max(0, min(new.replicas, free // new.gpus))
        found = now.get((new.role, new.revision))
        current[new.role] = max(fits, min(new.replicas, found.replicas) if found else 0)
        free -= current[new.role] * new.gpus
    return Rollout(current, {}, f"the GPU budget of {budget} does not hold both revisions: the old goes first")
