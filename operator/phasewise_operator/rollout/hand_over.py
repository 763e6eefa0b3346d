"""What a step of a rollout gives up and what it adds: changes of `replicas` in a State. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from phasewise_operator.rollout.state import Revision, Service, State
from phasewise_runtime import contract


def drop_failed(state: State) -> None:
    """Old revisions that are attempts which failed, or have not come far: nothing of them has served or serves."""
    for fingerprint in {r.fingerprint for r in state.old}:
        group = state.group(fingerprint)
        serves = any(r.served or (r.role == contract.DECODE and r.routable) for r in group)
        for revision in (r for r in group if not r.current):
            if not serves or (fingerprint == state.new and not revision.routable and not revision.served):
                revision.replicas = 0


def shrink_old(state: State, allow_downtime: bool = False) -> None:
    """Old pods go as new ones take over. While a new pod finds no node, one replica of each old pool goes for it, but
    not the last that serves, unless downtime is allowed."""
    stuck = any(c.unschedulable for c in state.current.values())
    least = Service.NONE if allow_downtime else None
    if not (stuck and state.attempt(partial(_shrink_old, state, 1), least)):
        _shrink_old(state, 0)


def _shrink_old(state: State, released: int) -> None:
    for role, current in state.current.items():
        _keep(state, state.new, role, max(0, state.size[role] - current.serving - released))
    left = {role: max(0, state.size[role] - state.handed_over(role) - released) for role in state.roles}
    last = all(state.handed_over(role) >= state.size[role] for role in state.roles)
    for n, fingerprint in enumerate(state.other_groups()):
        alike = state.same_shape(fingerprint)
        spare = n > 0 and state.service(fingerprint) <= Service.SERVED
        if last or spare or (alike and not all(left[r] for r in state.roles if state.size[r])):
            _drop(state, fingerprint)
        elif alike:
            for role, current in state.current.items():
                own = current.serving if current.fingerprint == fingerprint else 0
                _keep(state, fingerprint, role, max(0, left[role] - own))
                left[role] -= state.ready(fingerprint, role)
                left[role] = max(0, left[role])
        else:
            left = dict.fromkeys(left, 0)


def _keep(state: State, fingerprint: str, role: str, most: int) -> None:
    """Shrink the old revisions of one pool to so many replicas together, those that serve last."""
    old = [r for r in state.old if r.fingerprint == fingerprint and r.role == role]
    for revision in sorted(old, key=lambda r: (r.ready, r.served), reverse=True):
        revision.replicas = min(revision.replicas, most)
        most = max(0, most - revision.serving)


def _drop(state: State, fingerprint: str) -> None:
    for revision in state.old:
        if revision.fingerprint == fingerprint:
            revision.replicas = 0


def target(state: State) -> Mapping[str, int]:
    """Replicas of the new revision by role, for now: one pair beside an old one until the new can serve."""
    if not _first_pair(state):
        return state.size
    return {role: max(c.replicas, min(1, state.size[role])) for role, c in state.current.items()}


def _first_pair(state: State) -> bool:
    others = state.other_groups()
    return bool(others) and state.service(state.new) < Service.FULL and state.service(others[0]) > Service.NONE


def gpus_needed(state: State, target: Mapping[str, int]) -> int:
    """GPUs of the next step: the rest of the first pair, or one replica of the pool that is behind."""
    if _first_pair(state):
        return sum(c.gpus for role, c in state.current.items() if c.replicas < min(1, target[role]))
    role = _behind(state, target)
    return state.current[role].gpus if role else 0


def _behind(state: State, target: Mapping[str, int]) -> str | None:
    """The pool that lacks replicas and has the smallest part of its size."""
    lacking = [role for role, c in state.current.items() if c.replicas < target[role]]
    return min(lacking, key=lambda role: state.current[role].replicas / state.size[role], default=None)


def make_room(state: State, needed: int) -> bool:
    """Release old replicas where the GPU budget has no room for the next step; all that it takes, or none.

    What was added must serve before more is released, so that no more than one step is missing at a time.
    """
    free = state.gpus_free_later()
    starting = any(c.serving < c.replicas for c in state.current.values()) and not _first_pair(state)
    if free >= needed or not state.old or (starting and free >= 0):
        return True
    return release(state, needed, guarded=True)


def release(state: State, needed: int, guarded: bool) -> bool:
    """Take old replicas away, least worth first. `guarded`: not the last that serve; if that is too few, none."""
    before = [r.replicas for r in state.all]
    while state.gpus_free_later() < needed:
        least = None if guarded else Service.NONE
        if not any(state.attempt(partial(_release_one, state, r), least) for r in _candidates(state)):
            state.restore(before)
            return False
    return True


def _candidates(state: State) -> Iterator[Revision]:
    """Of the groups the least worth first; in a group of the pool with the largest part of its size."""
    for fingerprint in (*reversed(state.other_groups()), state.new):
        old = [r for r in state.old if r.fingerprint == fingerprint]
        yield from sorted(old, key=lambda r: (r.ready > 0, -r.replicas / max(1, state.size.get(r.role, 1))))
    replaced = set[str]() if _first_pair(state) else {r.role for r in state.old}
    yield from (c for role, c in state.current.items() if c.replicas > 1 and role not in replaced)


def _release_one(state: State, revision: Revision) -> None:
    """A group that lost a pool is of no use any more."""
    revision.replicas -= 1
    if revision.fingerprint != state.new and not any(
        r.replicas for r in state.group(revision.fingerprint) if r.role == revision.role
    ):
        _drop(state, revision.fingerprint)


def withdraw(state: State) -> None:
    """A budget that was lowered: new replicas that do not serve yet go before old ones that do."""
    while state.old and state.gpus_free_later() < 0:
        starting = [c for c in state.current.values() if c.replicas > c.routable and c.gpus]
        if not starting:
            return
        max(starting, key=lambda c: c.replicas / state.size[c.role]).replicas -= 1


def add(state: State, target: Mapping[str, int]) -> None:
    """As many replicas as the GPU budget has room for now, to the pool that is behind each time."""
    free = state.gpus_free()
    while role := _behind(state, target):
        current = state.current[role]
        cost = current.gpus if current.replicas + current.surge >= current.live else 0
        if cost > free:
            return
        current.replicas += 1
        free -= cost


def grow_old(state: State, blocked: bool) -> None:
    """Scaling goes on: until the new revision has served, the old one follows the size of the pool."""
    if not state.other_groups() or any(c.served or c.unschedulable for c in state.current.values()):
        return
    fingerprint = state.other_groups()[0]
    waiting = not blocked and any(c.replicas < min(1, state.size[role]) for role, c in state.current.items())
    pools = {r.role for r in state.group(fingerprint)}
    if waiting or not state.same_shape(fingerprint) or not all(state.ready(fingerprint, role) for role in pools):
        return
    for role in state.roles:
        pool = [r for r in state.former if r.role == role and r.fingerprint != state.new]
        grown = max((r for r in pool if r.fingerprint == fingerprint), key=lambda r: r.replicas, default=None)
        if grown is None:
            continue
        lacking = state.size[role] - state.handed_over(role) - sum(r.replicas for r in pool)
        room = min(state.gpus_free(), state.gpus_free_later())
        fits = lacking if grown.gpus == 0 else room // grown.gpus
        grown.replicas += max(0, min(lacking, fits))
