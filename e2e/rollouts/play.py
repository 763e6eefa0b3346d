"""Plays one kind of rollout under load, and what came of it as a row of the table in docs/rollouts.md."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from e2e import kube
from e2e.load import Outcome, latency, load, mixed_requests, wait_for_answers
from e2e.reference import Reference
from e2e.rollouts.ground import NAME, NAMESPACE, Ground
from e2e.rollouts.kinds import Kind
from e2e.rollouts.observer import Seen, observed
from e2e.service import Service

WORKERS = 8
LONGEST_PROMPT = 400
HEAD = (
    "| rollout | pods a pool | budget | seconds | requests | failed | GPUs held at most | TTFT p95 |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Result:
    kind: Kind
    seconds: float
    outcomes: Sequence[Outcome]
    failed: Sequence[Outcome]
    seen: Seen
    differences: Sequence[str]
    """Answers that are not the model's."""

    @property
    def faults(self) -> list[str]:
        """What must not be; empty: all is as it should be."""
        found = [f"{o.request.path} failed: {o.answer.error or o.answer.finish_reason}" for o in self.failed]
        found += list(self.differences)
        if self.seen.most_slots > self.kind.budget:
            found.append(f"{self.seen.most_slots} GPUs held under a budget of {self.kind.budget}")
        if self.seen.least_decode < 1:
            found.append("for a moment no decode pod was ready")
        return found

    @property
    def row(self) -> str:
        cells = (
            *(self.kind.name, self.kind.replicas, self.kind.budget, f"{self.seconds:.0f}", len(self.outcomes)),
            *(len(self.failed), self.seen.most_slots, f"{latency(self.outcomes).ttft_p95:.1f} s"),
        )
        return f"| {' | '.join(map(str, cells))} |"


def play(kind: Kind, service: Service, reference: Reference) -> Result:
    """The service must be Ready, with as many pods as the kind is about."""
    model = kube.get("infsvc", NAME, NAMESPACE)["spec"]["model"]["name"]
    with observed() as seen, load(service.url, model, WORKERS, LONGEST_PROMPT) as running:
        wait_for_answers(running, WORKERS)
        began = time.monotonic()
        kind.act(Ground(service, running))
        seconds = time.monotonic() - began
        wait_for_answers(running, WORKERS)
    good = [o for o in running.outcomes if o not in running.failed]
    return Result(kind, seconds, running.outcomes, running.failed, seen, reference.differences(_renamed(good, service)))


def _renamed(outcomes: Sequence[Outcome], service: Service) -> list[Outcome]:
    """With the model's first name, by which the reference knows it."""
    return [replace(o, request=replace(o.request, body={**o.request.body, "model": service.model})) for o in outcomes]


def first_answers(found: Service) -> Reference:
    """What the engine itself answers to the prompts of the load."""
    reference = Reference(found.expose_engine())
    reference.ask(mixed_requests(found.model, LONGEST_PROMPT))
    return reference
