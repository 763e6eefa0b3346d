"""Whether the revision that the spec asks for is bad, and why. Pure: `now` is an argument, and nothing is remembered.

Asked only while an old revision that served is there to go on with. Of these checks the first that applies speaks:

| what is seen of the new revision                                                            | cause           |
|---------------------------------------------------------------------------------------------|-----------------|
| a container ended with the exit code by which the launcher refuses the spec                 | EngineRefused   |
| none of its pods is ready, and one was restarted CRASHES times                              | PodsCrash       |
| none is ready, and one waits PERSON_SECONDS for what only a person can mend: an image       | PodsCannotStart |
| none of its pods has ever been ready, and the oldest was made `deadline` ago                | NeverReady      |
| KV transfer of all its ready pods, and not of all old ones, has failed for a while          | KVTransferFails |
| it has met its latency targets much less often than the old for a while                    | SlowerThanOld   |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from phasewise_operator.observed import PodView
from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout.state import DesiredRevision
from phasewise_runtime import contract

CRASHES: Final = 5
"""Restarts. The kubelet waits 10, 20, 40 ... seconds before each, so these take five minutes and all their starts."""
PERSON_SECONDS: Final = 300.0
"""A secret may be made, and an image pushed, a little later than the spec that names it."""
LONGEST_TEXT: Final = 1000
"""Characters: it stands in an annotation, and may be a termination message."""


class Cause(StrEnum):
    """Why a rollout failed."""

    ENGINE_REFUSED = "EngineRefused"
    PODS_CRASH = "PodsCrash"
    PODS_CANNOT_START = "PodsCannotStart"
    NEVER_READY = "NeverReady"
    KV_TRANSFER_FAILS = "KVTransferFails"
    SLOWER_THAN_OLD = "SlowerThanOld"


@dataclass(frozen=True)
class RolloutFailure:
    """A rollout that failed."""

    since: str
    """RFC 3339, UTC."""
    cause: Cause
    revision: str
    """Of all the spec's pools together: a spec that changes one of them is another."""
    text: str
    """On one line."""

    def to_note(self) -> str:
        """As it stands in the annotation contract.ANNOTATION_FAILED."""
        return f"{self.since} {self.cause} {self.revision} {self.text}"

    @classmethod
    def of_note(cls, note: str) -> RolloutFailure | None:
        """None where the text is not one of to_note."""
        since, _, rest = note.partition(" ")
        cause, _, rest = rest.partition(" ")
        revision, _, text = rest.partition(" ")
        if cause not in set(Cause) or not revision:
            return None
        return cls(since, Cause(cause), revision, text)


@dataclass(frozen=True)
class PodTrouble:
    """What keeps a pod from getting ready."""

    text: str
    needs_person: bool


@dataclass(frozen=True)
class Evidence:
    """What is known of pods and revisions beside what the API server says of them."""

    problems: Mapping[str, PodTrouble] = field(default_factory=dict[str, PodTrouble])
    """By pod name."""
    kv_fails: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pods whose KV transfer has failed for a while, and how: by pod name."""
    slower: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Revisions that have met their targets much less often than another for a while, with the figures: by role and
    revision."""


def combined(desired: Sequence[DesiredRevision]) -> str:
    """The revision of all pools together, as in the service's status."""
    return "-".join(d.revision for d in desired)


def rollout_failure(
    desired: Sequence[DesiredRevision],
    back: Sequence[RunningRevision],
    running: Sequence[RunningRevision],
    pods: Sequence[PodView],
    evidence: Evidence,
    deadline: float,
    now: str,
) -> RolloutFailure | None:
    """`back`: what there is to go on with, one of each role; a desired revision that is part of it is not judged.
    `deadline`: seconds. `now`: RFC 3339, UTC."""
    known, old = {(r.role, r.revision): r for r in running}, {(r.role, r.revision) for r in back}
    judged = [d for d in desired if old and (d.role, d.revision) not in old]
    for cause_of in (_of_pods, _never_ready, _kv_fails, _slower):
        for new in judged:
            mine = [p for p in pods if (p.role, p.revision) == (new.role, new.revision) and not p.deleting]
            former = [p for p in pods if p.role == new.role and (p.role, p.revision) in old and not p.deleting]
            seen = _Seen(new, known.get((new.role, new.revision)), mine, former, evidence, deadline, now)
            if found := next(cause_of(seen), None):
                cause, text = found
                line = " ".join(f"{new.role}: {text}".split())
                return RolloutFailure(now, cause, combined(desired), line[:LONGEST_TEXT])
    return None


@dataclass(frozen=True)
class _Seen:
    """What there is of the new revision in one role."""

    new: DesiredRevision
    running: RunningRevision | None
    pods: Sequence[PodView]
    old: Sequence[PodView]
    """Pods of the revision that there is to go on with."""
    evidence: Evidence
    deadline: float
    now: str

    @property
    def was_ready(self) -> bool:
        return self.running is not None and (self.running.served or self.running.ready > 0)

    def age(self, pod: PodView) -> float:
        return seconds_between(pod.created, self.now)

    def problem(self, pod: PodView) -> str:
        found = self.evidence.problems.get(pod.name)
        return found.text if found else f"pod {pod.name} is not ready"


Found = Iterator[tuple[Cause, str]]


def _of_pods(seen: _Seen) -> Found:
    """Beside pods that are ready one that crashes, or cannot start, may be on a bad node."""
    alone = not any(p.ready for p in seen.pods)
    for pod in (p for p in seen.pods if not p.ready):
        found = seen.evidence.problems.get(pod.name)
        if pod.ended and pod.ended.code == contract.EXIT_CONFIG:
            yield Cause.ENGINE_REFUSED, seen.problem(pod)
        elif alone and pod.restarts >= CRASHES:
            yield Cause.PODS_CRASH, f"{seen.problem(pod)} (restarted {pod.restarts} times)"
        elif alone and found and found.needs_person and pod.ended is None and seen.age(pod) >= PERSON_SECONDS:
            yield Cause.PODS_CANNOT_START, seen.problem(pod)


def _never_ready(seen: _Seen) -> Found:
    """Time that its pods wait for a node counts: what never finds one is bad, too. That for GPUs of the budget does
    not, since there is no pod then."""
    oldest = max(seen.pods, key=seen.age, default=None)
    if oldest and not seen.was_ready and seen.age(oldest) >= seen.deadline:
        yield Cause.NEVER_READY, f"no pod was ready {seen.deadline:g} s after it was made; {seen.problem(oldest)}"


def _kv_fails(seen: _Seen) -> Found:
    """One pod of several may be on a bad node. Where KV transfer fails for the old revision alike, it is not the new
    one's fault."""
    if all(p.name in seen.evidence.kv_fails for p in seen.old if p.ready):
        return
    ready = [p.name for p in seen.pods if p.ready]
    failed = [seen.evidence.kv_fails[name] for name in ready if name in seen.evidence.kv_fails]
    if failed and len(failed) == len(ready):
        yield Cause.KV_TRANSFER_FAILS, failed[0]


def _slower(seen: _Seen) -> Found:
    if text := seen.evidence.slower.get((seen.new.role, seen.new.revision)):
        yield Cause.SLOWER_THAN_OLD, text


def seconds_between(begin: str, end: str) -> float:
    """Between two times of the API server; 0 where one is missing or is no time."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
