"""Whether the rollout of the newest spec has failed: as it is marked on Deployments, or as it shows now. Pure;
called by plan.

The mark is an annotation of our own on the Deployments of the new revision, which stay as long as the spec asks for it.
It holds for that spec only, and until somebody changes the service's annotation `phasewise.dev/refresh-engines` or
takes one of these Deployments, or its mark, away: then the same is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.conditions import Severity
from phasewise_operator.reconcile.kept_engines import Notes, is_kept
from phasewise_operator.reconcile.pod_problems import pod_problem
from phasewise_operator.render.context import Context
from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import DesiredRevision
from phasewise_operator.rollout.failure import Evidence, PodTrouble, RolloutFailure, combined, rollout_failure
from phasewise_operator.rollout.turn_back import fallback
from phasewise_operator.scaling.types import Recommendation
from phasewise_runtime import contract


def failed_rollout(
    ctx: Context,
    observed: Observed,
    notes: Notes,
    desired: Sequence[DesiredRevision],
    running: Sequence[RunningRevision],
    recommendation: Recommendation,
    now: str,
) -> RolloutFailure | None:
    """None where no old revision is left to go on with, too: then the new one is all that there is. `now`: RFC 3339,
    UTC; without it, or while the service is paused, only marks are read."""
    back = fallback(desired, running)
    if not back:
        return None
    marks, complete = _marks(ctx, notes, desired, back)
    if marks and complete:
        return marks[0]
    if not now or ctx.spec.paused:
        return None
    evidence = _evidence(observed, recommendation, now)
    deadline = ctx.spec.rollout.deadline.seconds
    found = rollout_failure(desired, back, running, observed.pods, evidence, deadline, now)
    return marks[0] if found and marks else found


def _marks(
    ctx: Context, notes: Notes, desired: Sequence[DesiredRevision], back: Sequence[RunningRevision]
) -> tuple[list[RolloutFailure], bool]:
    """Marks on Deployments of the new revision, and whether all have one: one that is made again lets the rollout begin
    anew. Where the write of one was refused, the others keep their time."""
    old = {(r.role, r.revision) for r in back}
    mine = [notes.get((d.role, d.revision), {}) for d in desired if (d.role, d.revision) not in old]
    found = [RolloutFailure.of_note(n.get(contract.ANNOTATION_FAILED, "")) for n in mine if is_kept(ctx, n)]
    marks = [mark for mark in found if mark and mark.revision == combined(desired)]
    return marks, len(marks) == len(mine)


def _evidence(observed: Observed, recommendation: Recommendation, now: str) -> Evidence:
    found = [(pod.name, pod_problem([pod], now)) for pod in observed.pods]
    problems = {
        name: PodTrouble(f"{problem.reason}: {problem.message}", problem.severity is Severity.STALLED)
        for name, problem in found
        if problem
    }
    return Evidence(problems, recommendation.kv_fails, recommendation.slower)
