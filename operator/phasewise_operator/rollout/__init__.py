"""Which revision of a pool gets how many replicas next. Pure: the answer follows from what is observed alone.

Each step does two things. It gives up what is worth least, and never the last pods that serve while anything else can
go. And it adds what fits: first one pair of the new revision, and once that serves, all of it.

Pods of different KV fingerprints cannot serve one request together. So a change that keeps the fingerprint replaces
pods within the pools; one that changes it brings up a new pair of pools beside the old, which shrink as the new take
over. A change of mind half-way is no special case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import drain, hand_over, messages
from phasewise_operator.rollout.state import DesiredRevision, Service, State

__all__ = ["DesiredRevision", "Rollout", "plan_rollout"]


@dataclass(frozen=True)
class Rollout:
    current: Mapping[str, int]
    """Replicas of the desired revision, by role."""
    old: Mapping[tuple[str, str], int]
    """Replicas of every other revision that stays, by role and revision; what is not named goes."""
    reason: str
    """Empty where nothing is under way."""
    blocked: str = ""
    """Why it cannot go on without downtime, and what to do; empty: it can."""
    surge: bool = True
    """Whether the GPU budget holds one pod more of each pool, as a Deployment's own rolling update may make."""
    serving: frozenset[tuple[str, str]] = frozenset()
    """Roles and revisions that serve now with all their pools: worth recording, for they may be unready later."""
    fallback: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where the desired revision has failed: the revision that goes on in its place, by role."""


def plan_rollout(
    desired: Sequence[DesiredRevision],
    running: Sequence[RunningRevision],
    gpu_budget: int | None,
    allow_downtime: bool = False,
) -> Rollout:
    """`desired`: each role once, all of one fingerprint: a spec whose pools could not pair is refused before."""
    state = State(desired, running, gpu_budget)
    serving = {(r.role, r.revision) for r in state.all if r.ready and state.service(r.fingerprint) is Service.FULL}
    before = {role: current.replicas for role, current in state.current.items()}
    for role, current in state.current.items():
        current.replicas = min(current.replicas, state.size[role])
    hand_over.drop_failed(state)
    hand_over.shrink_old(state, allow_downtime)
    blocked = _next_replicas(state, allow_downtime)
    hand_over.grow_old(state, blocked != "")
    reason = messages.reason(state, any(r.replicas for r in running if (r.role, r.revision) not in _keys(state)))
    if not (blocked or reason or allow_downtime):
        reason, blocked = drain.add_successors(state, before)
    surge = state.surge_fits()
    return Rollout(
        {role: current.replicas for role, current in state.current.items()},
        {(r.role, r.revision): r.replicas for r in state.kept},
        reason,
        blocked,
        surge,
        frozenset(serving),
    )


def _keys(state: State) -> set[tuple[str, str]]:
    return {(c.role, c.revision) for c in state.current.values()}


def _next_replicas(state: State, allow_downtime: bool) -> str:
    """Give the new revision its next replicas, and make room for them. Why it cannot go on; empty: it can."""
    hand_over.withdraw(state)
    target = hand_over.target(state)
    needed = hand_over.gpus_needed(state, target)
    blocked = ""
    if not hand_over.make_room(state, needed):
        if allow_downtime:
            hand_over.release(state, needed, guarded=False)
        else:
            blocked = messages.no_room(state, needed)
    if not blocked:
        hand_over.add(state, target)
    return blocked
