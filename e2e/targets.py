"""TTFT and ITL targets that this machine can meet: on a slow or shared one the example's would be missed even idle.

A pool then grows and does not return, rightly, and no load shows anything. So what one request alone gets is measured
first; where that leaves too little room for load, the service's targets are raised, and only then.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from e2e import kube, table
from e2e.load import Outcome, Traffic
from e2e.shapes import GENERATION_HEAVY, PROMPT_HEAVY, Shape, salted

SAMPLES = 3
ROUNDS = 4
"""At most, until one is no quicker than the one before: an engine's first requests are slow."""
QUICKER = 0.8
TTFT_ROOM = 3.0
"""Times the TTFT of a long prompt alone: one that waits for another, and what the machine's noise adds."""
ITL_ROOM = 3.0
"""Times the ITL of a stream alone."""
READY_SECONDS = 400


@dataclass(frozen=True)
class Targets:
    """In seconds."""

    ttft: float
    itl: float

    def __str__(self) -> str:
        return f"TTFT {self.ttft:g} s, ITL {1000 * self.itl:g} ms"


def fit(service: str, namespace: str, url: str, model: str) -> tuple[Targets, Targets]:
    """What requests get alone, and the service's targets, raised where they leave too little room above that."""
    found = alone(url, model)
    before = of(service, namespace)
    after = Targets(
        max(before.ttft, math.ceil(TTFT_ROOM * found.ttft)),
        max(before.itl, math.ceil(100 * ITL_ROOM * found.itl) / 100),
    )
    if after != before:
        write(service, namespace, after)
    return found, after


def alone(url: str, model: str) -> Targets:
    """TTFT of a long prompt and ITL of a stream that have the service to themselves."""
    found = Targets(math.inf, math.inf)
    for _ in range(ROUNDS):
        ttft = statistics.median(o.answer.ttft or math.nan for o in one_by_one(url, model, PROMPT_HEAVY))
        itl = statistics.median(o.answer.itl or math.nan for o in one_by_one(url, model, GENERATION_HEAVY))
        last, found = found, Targets(round(min(ttft, found.ttft), 2), round(min(itl, found.itl), 3))
        if found.ttft > QUICKER * last.ttft and found.itl > QUICKER * last.itl:
            break
    return found


def one_by_one(url: str, model: str, shape: Shape) -> list[Outcome]:
    """Requests of a shape with nothing beside them; AssertionError where one fails."""
    traffic = Traffic(url, model)
    for request in shape.requests(model)[:SAMPLES]:
        traffic.send(salted(request))
    if traffic.failed:
        raise AssertionError(f"a request alone fails: {traffic.failed[0].answer.error}")
    return traffic.outcomes


def of(service: str, namespace: str) -> Targets:
    slo = kube.get("infsvc", service, namespace)["spec"]["slo"]
    return Targets(table.seconds(slo["ttft"]), table.seconds(slo["itl"]))


def write(service: str, namespace: str, targets: Targets) -> None:
    """The routers are replaced for it, since they judge by the targets."""
    slo = {"ttft": f"{1000 * targets.ttft:.0f}ms", "itl": f"{1000 * targets.itl:.0f}ms"}
    kube.patch("infsvc", service, {"spec": {"slo": slo}}, namespace)
    kube.wait_ready(service, namespace, READY_SECONDS)
