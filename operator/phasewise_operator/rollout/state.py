"""The revisions of a service as a step of a rollout sees and changes them: who serves, and what it costs. Pure.

Pods of one KV fingerprint form a group: only they can serve a request together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from phasewise_operator.revisions import RunningRevision
from phasewise_runtime import contract

NO_BUDGET: Final = 10**9
"""GPUs; more than a cluster has, and than the budget may be."""


@dataclass(frozen=True)
class DesiredRevision:
    """A role as the spec has it now."""

    role: str
    revision: str
    fingerprint: str
    replicas: int
    gpus: int
    """GPUs a replica."""


class Service(IntEnum):
    """What a group of pods can do for requests, the least first."""

    NONE = 0
    SERVED = 1
    """Nothing now; it has served, and has replicas in each role, so it may serve again."""
    DECODE_ONLY = 2
    """Its decode pods compute the prompts, too, since it has no ready prefill pod."""
    FULL = 3


@dataclass
class Revision:
    """One revision of one role. A step changes `replicas` only."""

    role: str
    revision: str
    fingerprint: str
    gpus: int
    current: bool
    """It is the one that the spec asks for."""
    replicas: int = 0
    ready: int = 0
    """Pods that serve. Of the new group's current revisions those that have been ready for a while and, where that is
    known, have handed KV over."""
    unproved: int = 0
    """Of the pods that have been ready for a while those that `ready` lacks: they have not handed KV over yet."""
    routable: int = 0
    """Pods that are ready at this moment."""
    live: int = 0
    """Pods that exist and stay if replicas do not change."""
    terminating: int = 0
    surge: int = 0
    """Pods that a rolling update of its Deployment may add."""
    unschedulable: int = 0
    leaving: int = 0
    """Pods that are ready, on nodes that are drained."""
    leaving_proved: int = 0
    """Of these those that have handed KV over, where that is known."""
    served: bool = False
    aggregated: bool = False

    @property
    def serving(self) -> int:
        """Ready pods after the step: a Deployment that shrinks removes pods that are not ready first."""
        return min(self.ready, self.replicas)

    @property
    def gpus_held(self) -> int:
        return (self.terminating + max(self.live, self.replicas + self.surge)) * self.gpus


class State:
    """All revisions of a service, and the sizes that its pools are to have."""

    def __init__(self, desired: Sequence[DesiredRevision], running: Sequence[RunningRevision], budget: int | None):
        self.roles = [d.role for d in desired]
        self.size = {d.role: d.replicas for d in desired}
        self.budget = NO_BUDGET if budget is None else budget
        keys = {(d.role, d.revision): d for d in desired}
        found = {(r.role, r.revision): r for r in running}
        self.current = {
            d.role: Revision(d.role, d.revision, d.fingerprint, d.gpus, current=True, replicas=0) for d in desired
        }
        for current in self.current.values():
            if seen := found.get((current.role, current.revision)):
                _observe(current, seen)
                provable = any(r.ready for r in running if r.role != current.role and r.fingerprint == seen.fingerprint)
                # Without a pod of the other pool there is none to hand KV to, and nothing that it could take down.
                current.ready = seen.available if seen.proved is None or not provable else seen.proved
                current.unproved = seen.available - current.ready
        self.former = [_former(r) for key, r in found.items() if key not in keys]
        self.all = [*self.current.values(), *self.former]
        self.new = desired[0].fingerprint
        """Fingerprint of the group that the spec asks for."""
        self._shapes: dict[str, set[str]] = {}
        for r in self.all:
            if r.replicas or r.current:
                aggregated = self.roles == [contract.DECODE] if r.current else r.aggregated
                self._shapes[r.fingerprint] = {contract.DECODE} if aggregated else set(contract.ENGINE_ROLES)

    @property
    def old(self) -> list[Revision]:
        """Revisions that the spec does not ask for and that still have replicas."""
        return [r for r in self.former if r.replicas]

    @property
    def kept(self) -> list[Revision]:
        """`old`, and one revision of each pool of their groups that has no replicas: it may be scaled again."""
        groups = {r.fingerprint for r in self.old} - {self.new}
        found = {(r.fingerprint, r.role): r for r in self.former if r.fingerprint in groups}
        for revision in self.old:
            found.pop((revision.fingerprint, revision.role), None)
        return [*self.old, *found.values()]

    def group(self, fingerprint: str) -> list[Revision]:
        return [r for r in self.all if r.fingerprint == fingerprint and (r.replicas or r.current)]

    def same_shape(self, fingerprint: str) -> bool:
        """Whether the group has the roles that the spec has: a decode pool does more without a prefill pool."""
        return self._shapes[fingerprint] == set(self.roles)

    def ready(self, fingerprint: str, role: str, now: bool = False) -> int:
        """`now`: also pods that have only just become ready."""
        pool = [r for r in self.all if r.fingerprint == fingerprint and r.role == role]
        return sum(min(r.routable, r.replicas) if now else r.serving for r in pool)

    def service(self, fingerprint: str, now: bool = False) -> Service:
        """What the group can do after the step. `now`: also with pods that have only just become ready.

        A pool that is to have no replicas is not missed."""
        roles = self._shapes.get(fingerprint, set())
        shape = {role for role in roles if self.size.get(role, 1)} or roles
        if shape and all(self.ready(fingerprint, role, now) for role in shape):
            return Service.FULL
        if self.ready(fingerprint, contract.DECODE, now):
            return Service.DECODE_ONLY
        served = {r.role for r in self.all if r.fingerprint == fingerprint and r.served and r.replicas}
        return Service.SERVED if shape and served >= shape else Service.NONE

    def best_service(self, now: bool) -> Service:
        return max((self.service(f, now) for f in self._shapes), default=Service.NONE)

    def other_groups(self) -> list[str]:
        """Fingerprints of old revisions other than the new one, most worth first; of equals the oldest."""
        found = dict.fromkeys(r.fingerprint for r in self.old if r.fingerprint != self.new)
        return sorted(found, key=self._worth, reverse=True)

    def _worth(self, fingerprint: str) -> tuple[bool, int, int, bool]:
        """One that has served, and is not ready for a moment, is worth more than one that never served in full."""
        service, served = self.service(fingerprint), any(r.served for r in self.group(fingerprint))
        pairs = min(self.ready(fingerprint, role) for role in self._shapes[fingerprint])
        return service is Service.FULL or served, service, pairs, served

    def handed_over(self, role: str) -> int:
        """Replicas of an old pool whose share of the traffic the new group can serve, with all its pools."""
        shares = (self.size[role] * self.ready(self.new, r) // self.size[r] for r in self.roles if self.size[r])
        return min(self.size[role], min(shares, default=self.size[role]))

    def gpus_free(self) -> int:
        """GPUs of the budget that no pod holds, and no replica that is still to become one."""
        return self.budget - sum(r.gpus_held for r in self.all)

    def surge_fits(self) -> bool:
        """Whether the budget holds one pod more of each current revision."""
        surging = ((c.terminating + max(c.live, c.replicas + 1)) * c.gpus for c in self.current.values())
        return sum(r.gpus_held for r in self.former) + sum(surging) <= self.budget

    def gpus_free_later(self) -> int:
        """The same once the pods that are going have gone."""
        return self.budget - sum(r.replicas * r.gpus for r in self.all)

    def attempt(self, change: Callable[[], None], least: Service | None = None) -> bool:
        """Make a change, unless less service would be left than now (or than `least`). That holds for the pods that are
        ready and for those that have been for a while: new pods may be all that serves, and may be gone in a moment."""
        bounds = [(now, self.best_service(now) if least is None else least) for now in (True, False)]
        before = [r.replicas for r in self.all]
        change()
        if all(self.best_service(now) >= bound for now, bound in bounds):
            return True
        self.restore(before)
        return False

    def restore(self, replicas: Iterable[int]) -> None:
        for revision, count in zip(self.all, replicas, strict=True):
            revision.replicas = count


def _former(found: RunningRevision) -> Revision:
    revision = Revision(found.role, found.revision, found.fingerprint, found.gpus, current=False)
    _observe(revision, found)
    # Beside pods that hand no KV over its prefill pods serve nobody; its decode pods may compute the prompts, too.
    if found.role == contract.PREFILL and found.proved is not None and not found.served:
        revision.ready = found.proved
    return revision


def _observe(revision: Revision, found: RunningRevision) -> None:
    revision.replicas, revision.served, revision.aggregated = found.replicas, found.served, found.aggregated
    revision.ready = revision.routable = found.ready
    revision.terminating, revision.live = found.terminating, found.pods - found.terminating
    revision.surge, revision.unschedulable = found.surge, found.unschedulable
    revision.leaving, revision.leaving_proved = found.leaving, found.leaving_proved
