"""TTFT and ITL targets that this machine can meet: on a slow or shared one the example's would be missed even idle.

A pool would then grow and rightly not return, and no load would show anything. So the latency of single requests is
measured first; where it leaves too little margin for load, the service's targets are raised, and only then.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from e2e import kube, table
from e2e.load import Outcome, Traffic, salted
from e2e.load_shapes import GENERATION_HEAVY, PROMPT_HEAVY, Shape

SAMPLES = 3
MAX_ROUNDS = 4
QUICKER = 0.8
"""An engine's first requests are slow: rounds go on while one takes less than this share of the one before."""
TTFT_MARGIN = 3.0
"""Times the TTFT of a single long prompt: one that waits for another, and what the machine's noise adds."""
ITL_MARGIN = 3.0
"""Times the ITL of a single stream."""
READY_SECONDS = 400


@dataclass(frozen=True)
class Targets:
    """In seconds."""

    ttft: float
    itl: float

    def __str__(self) -> str:
        return f"TTFT {self.ttft:g} s, ITL {1000 * self.itl:g} ms"


def fit(service: str, namespace: str, url: str, model: str) -> tuple[Targets, Targets]:
    """The latency of single requests, and the service's targets, raised where they leave too little margin above it."""
    single = measure_single(url, model)
    before = of(service, namespace)
    after = Targets(
        max(before.ttft, math.ceil(TTFT_MARGIN * single.ttft)),
        max(before.itl, math.ceil(100 * ITL_MARGIN * single.itl) / 100),
    )
    if after != before:
        write(service, namespace, after)
    return single, after


def measure_single(url: str, model: str) -> Targets:
    """TTFT of a long prompt and ITL of a stream, each with no other request in the service."""
    best = Targets(math.inf, math.inf)
    for _ in range(MAX_ROUNDS):
        ttft = statistics.median(o.answer.ttft or math.nan for o in send_singly(url, model, PROMPT_HEAVY))
        itl = statistics.median(o.answer.itl or math.nan for o in send_singly(url, model, GENERATION_HEAVY))
        last, best = best, Targets(round(min(ttft, best.ttft), 2), round(min(itl, best.itl), 3))
        if best.ttft > QUICKER * last.ttft and best.itl > QUICKER * last.itl:
            break
    return best


def send_singly(url: str, model: str, shape: Shape) -> list[Outcome]:
    """Requests of a shape, one at a time; AssertionError where one fails."""
    traffic = Traffic(url, model)
    for request in shape.requests(model)[:SAMPLES]:
        traffic.send(salted(request))
    if traffic.failed:
        raise AssertionError(f"a single request fails: {traffic.failed[0].answer.error}")
    return traffic.outcomes


def of(service: str, namespace: str) -> Targets:
    slo = kube.get("infsvc", service, namespace)["spec"]["slo"]
    return Targets(table.seconds(slo["ttft"]), table.seconds(slo["itl"]))


def write(service: str, namespace: str, targets: Targets) -> None:
    """Routers judge requests by the targets: they are replaced, and this waits for it."""
    slo = {"ttft": f"{1000 * targets.ttft:.0f}ms", "itl": f"{1000 * targets.itl:.0f}ms"}
    kube.patch("infsvc", service, {"spec": {"slo": slo}}, namespace)
    kube.wait_ready(service, namespace, READY_SECONDS)
