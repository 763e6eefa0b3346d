"""Which revision of a pool gets how many replicas next. Pure.

Pods of different KV fingerprints cannot serve one request together. So a change that keeps the fingerprint replaces
one pool, replica by replica; one that changes it brings up a whole new pair of pools beside the old, and the old goes
when the new can take all the traffic. Where a GPU budget does not hold both, the old goes first.

The answer follows from what is observed alone, so a change of mind half-way is no special case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


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
class RunningRevision:
    """A revision of an engine role that runs: a Deployment, or (replicas 0) the pods that are left of one."""

    role: str
    revision: str
    fingerprint: str
    replicas: int
    ready: int
    pods: int
    """Pods that exist, terminating ones too: they hold their GPUs until they are gone."""
    gpus: int
    """GPUs a pod."""
    served: bool
    """It was available as a whole once."""


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
    if gpu_budget is not None and _gpus(desired, old) > gpu_budget:
        beside = _as_large_as_fits(desired, now, old, gpu_budget)
        if beside is None:
            return _release_first(desired, now, old, gpu_budget)
        desired = beside
    whole = all(_ready(now, w) >= min(w.replicas, _carried(old, w.role)) for w in desired)
    kept: dict[tuple[str, str], int] = {}
    for want in desired:
        for was in (r for r in old if r.role == want.role):
            replicas = 0 if whole else _keep(want, was, _ready(now, want))
            if replicas > 0:
                kept[was.role, was.revision] = replicas
    reason = "" if whole else "the new revision comes up beside the old, which goes on serving until it is ready"
    return Rollout({w.role: w.replicas for w in desired}, kept, reason)


def _carried(old: Sequence[RunningRevision], role: str) -> int:
    """Replicas that can take all the traffic that the old revisions took: what is desired beyond comes without them."""
    return max(1, sum(r.ready for r in old if r.role == role))


def _as_large_as_fits(
    desired: Sequence[DesiredRevision],
    now: Mapping[tuple[str, str], RunningRevision],
    old: Sequence[RunningRevision],
    budget: int,
) -> list[DesiredRevision] | None:
    """A pool that grows in mid-rollout must not turn it into one where the old goes first: it grows as far as there is
    room. None: the new revision is not yet as large as the old, or does not fit beside it even as it is."""
    found = [now.get((w.role, w.revision)) for w in desired]
    has = [min(w.replicas, f.replicas) if f else 0 for w, f in zip(desired, found, strict=True)]
    free = budget - sum(max(r.pods, r.replicas) * r.gpus for r in old)
    free -= sum(n * w.gpus for n, w in zip(has, desired, strict=True))
    if free < 0 or any(n < sum(r.replicas for r in old if r.role == w.role) for n, w in zip(has, desired, strict=True)):
        return None
    fitted: list[DesiredRevision] = []
    for want, there in zip(desired, has, strict=True):
        more = want.replicas - there if want.gpus == 0 else min(want.replicas - there, free // want.gpus)
        free -= more * want.gpus
        fitted.append(replace(want, replicas=there + more))
    return fitted


def _ready(now: Mapping[tuple[str, str], RunningRevision], want: DesiredRevision) -> int:
    found = now.get((want.role, want.revision))
    return found.ready if found else 0


def _keep(want: DesiredRevision, was: RunningRevision, ready: int) -> int:
    """Replicas an old revision keeps: what never served goes at once; a readable peer is replaced one by one.

    One that is merely not ready at this moment may be the only one that can serve again.
    """
    if was.ready == 0 and not was.served:
        return 0
    if was.fingerprint == want.fingerprint:
        return max(0, min(was.replicas, want.replicas - ready))
    return was.replicas


def _gpus(desired: Sequence[DesiredRevision], old: Sequence[RunningRevision]) -> int:
    """GPUs held if the new came beside the old."""
    return sum(max(r.pods, r.replicas) * r.gpus for r in old) + sum(w.replicas * w.gpus for w in desired)


def _release_first(
    desired: Sequence[DesiredRevision],
    now: Mapping[tuple[str, str], RunningRevision],
    old: Sequence[RunningRevision],
    budget: int,
) -> Rollout:
    """The old goes at once; the new takes, in the order of the roles, what its pods have let go. It never shrinks."""
    free = budget - sum(r.pods * r.gpus for r in old)
    current: dict[str, int] = {}
    for want in desired:
        fits = want.replicas if want.gpus == 0 else max(0, min(want.replicas, free // want.gpus))
        found = now.get((want.role, want.revision))
        current[want.role] = max(fits, min(want.replicas, found.replicas) if found else 0)
        free -= current[want.role] * want.gpus
    return Rollout(current, {}, f"the GPU budget of {budget} does not hold both revisions: the old goes first")
