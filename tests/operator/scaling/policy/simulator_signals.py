"""What the plant tells the policy, over the windows that the real signals have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tests.operator.scaling.policy.simulator_parts import Pod, Request

from phasewise_operator.scaling.types import Coverage, Latency, Outcomes, PodLoad, PoolSignals, Signals, TtftParts

if TYPE_CHECKING:
    from tests.operator.scaling.policy.simulator import Plant

TICK = 2.0
LOAD_WINDOW = 10.0
SLO_WINDOW = 30.0
PHASES: tuple[str, ...] = ("queue", "prefill", "decode")


def signals(plant: Plant) -> Signals:
    plant.history.append(
        (plant.now, plant.arrived, {p.name: p.counters() for pods in plant.pods.values() for p in pods})
    )
    while len(plant.history) > LOAD_WINDOW / TICK + 1:
        plant.history.popleft()
    began, arrived, before = plant.history[0]
    window = plant.now - began
    for events in (plant.firsts, plant.done):
        while events and events[0][0] < plant.now - SLO_WINDOW:
            events.popleft()
    waiting = [r for r in plant.unfinished if r.first is None]
    return Signals(
        at=plant.now,
        load_window=window,
        slo_window=min(SLO_WINDOW, plant.now),
        routers=Coverage(1, 1),
        pools={role: _pool(plant, role, before, window) for role in plant.pods},
        arrivals=(plant.arrived - arrived) / window if window else 0.0,
        active=len(plant.unfinished) - len(plant.router),
        queued=len(plant.router),
        awaiting=_by_phase(waiting),
        overdue=_by_phase(r for r in waiting if plant.now - r.read > plant.targets.ttft),
        outcomes=Outcomes(
            **{
                k: sum(1.0 for d in plant.done if d[1] == k)
                for k in ("met", "ttft_missed", "itl_missed", "both_missed")
            }
        ),
        parts=_parts(plant),
        ttft=_latency([(r.first or 0.0) - r.read for _, r in plant.firsts], plant.targets.attainment),
        itl=_latency([d[2] for d in plant.done], plant.targets.attainment),
    )


def _pool(plant: Plant, role: str, before: dict[str, tuple[float, ...]], window: float) -> PoolSignals:
    ready = plant.usable(role)
    unread = math.ceil(len(ready) * plant.shape.unreadable(plant.now, role))
    read = ready[unread:]
    return PoolSignals(
        coverage=Coverage(len(read), len(ready)), pods={p.name: _pod(plant, p, role, before, window) for p in read}
    )


def _pod(plant: Plant, pod: Pod, role: str, before: dict[str, tuple[float, ...]], window: float) -> PodLoad:
    old = before.get(pod.name, (0.0,) * 5)
    busy, inflight, legs, tokens, gaps = (b - a for a, b in zip(old, pod.counters(), strict=True))
    decode = role == "decode"
    return PodLoad(
        concurrency=inflight / window if window else None,
        busy=busy / window if window else None,
        legs=legs,
        running=len(pod.streams) if decode else float(pod.serving is not None),
        waiting=len(pod.queue),
        blocked=len(pod.queue) if decode else 0.0,
        kv_usage=len(pod.streams) * plant.shape.kv if decode else 0.0,
        itl=gaps / tokens if tokens else None,
        tokens=tokens,
    )


def _parts(plant: Plant) -> TtftParts:
    reqs = [r for _, r in plant.firsts]
    if not reqs:
        return TtftParts()

    def mean(part: Callable[[Request], float]) -> float:
        return sum(part(r) for r in reqs) / len(reqs)

    split = "prefill" in plant.pods
    return TtftParts(
        router_queue=mean(lambda r: r.admitted - r.read),
        prefill_queue=mean(lambda r: r.began - r.admitted) if split else None,
        prefill=mean(lambda r: r.computed - r.began) if split else None,
        transfer=plant.shape.transfer if split else None,
        admission=mean(lambda r: max(0.0, r.entered - r.moved)),
        first_token=mean(lambda r: (r.first or 0.0) - r.entered),
    )


def _by_phase(requests: Iterable[Request]) -> dict[str, float]:
    counts = dict.fromkeys(PHASES, 0.0)
    for request in requests:
        counts[request.phase] += 1
    return counts


def _latency(values: list[float], attainment: float) -> Latency | None:
    if not values:
        return None
    ordered = sorted(values)

    def quantile(q: float) -> float:
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]

    return Latency(len(values), sum(values) / len(values), quantile(0.5), quantile(0.95), quantile(attainment))
