"""The signals of the simulator, over the windows that the real signals have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tests.operator.scaling.policy.simulator_parts import Pod, Request

from phasewise_operator.scaling.types import Coverage, Latency, Outcomes, PodLoad, PoolSignals, Signals, TtftParts

if TYPE_CHECKING:
    from tests.operator.scaling.policy.simulator import Simulator

TICK = 2.0
LOAD_WINDOW = 10.0
SLO_WINDOW = 30.0
PHASES: tuple[str, ...] = ("queue", "prefill", "decode")


def signals(simulator: Simulator) -> Signals:
    simulator.history.append(
        (simulator.now, simulator.arrived, {p.name: p.counters() for pods in simulator.pods.values() for p in pods})
    )
    while len(simulator.history) > LOAD_WINDOW / TICK + 1:
        simulator.history.popleft()
    began, arrived, before = simulator.history[0]
    window = simulator.now - began
    for events in (simulator.firsts, simulator.done):
        while events and events[0][0] < simulator.now - SLO_WINDOW:
            events.popleft()
    waiting = [r for r in simulator.unfinished if r.first is None]
    return Signals(
        at=simulator.now,
        load_window=window,
        slo_window=min(SLO_WINDOW, simulator.now),
        routers=Coverage(1, 1),
        pools={role: _pool(simulator, role, before, window) for role in simulator.pods},
        arrivals=(simulator.arrived - arrived) / window if window else 0.0,
        active=len(simulator.unfinished) - len(simulator.router),
        queued=len(simulator.router),
        awaiting=_by_phase(waiting),
        overdue=_by_phase(r for r in waiting if simulator.now - r.read > simulator.targets.ttft),
        outcomes=Outcomes(
            **{
                k: sum(1.0 for d in simulator.done if d[1] == k)
                for k in ("met", "ttft_missed", "itl_missed", "both_missed")
            }
        ),
        parts=_parts(simulator),
        ttft=_latency([(r.first or 0.0) - r.read for _, r in simulator.firsts], simulator.targets.attainment),
        itl=_latency([d[2] for d in simulator.done], simulator.targets.attainment),
    )


def _pool(simulator: Simulator, role: str, before: dict[str, tuple[float, ...]], window: float) -> PoolSignals:
    ready = simulator.usable(role)
    unreadable = math.ceil(len(ready) * simulator.shape.unreadable(simulator.now, role))
    read = ready[unreadable:]
    return PoolSignals(
        coverage=Coverage(len(read), len(ready)), pods={p.name: _pod(simulator, p, role, before, window) for p in read}
    )


def _pod(simulator: Simulator, pod: Pod, role: str, before: dict[str, tuple[float, ...]], window: float) -> PodLoad:
    old = before.get(pod.name, (0.0,) * 5)
    busy, inflight, requests, tokens, gaps = (b - a for a, b in zip(old, pod.counters(), strict=True))
    decode = role == "decode"
    return PodLoad(
        concurrency=inflight / window if window else None,
        busy=busy / window if window else None,
        requests=requests,
        running=len(pod.streams) if decode else float(pod.serving is not None),
        waiting=len(pod.queue),
        blocked=len(pod.queue) if decode else 0.0,
        kv_usage=len(pod.streams) * simulator.shape.kv if decode else 0.0,
        itl=gaps / tokens if tokens else None,
        tokens=tokens,
    )


def _parts(simulator: Simulator) -> TtftParts:
    reqs = [r for _, r in simulator.firsts]
    if not reqs:
        return TtftParts()

    def mean(part: Callable[[Request], float]) -> float:
        return sum(part(r) for r in reqs) / len(reqs)

    split = "prefill" in simulator.pods
    return TtftParts(
        router_queue=mean(lambda r: r.admitted - r.read),
        prefill_queue=mean(lambda r: r.began - r.admitted) if split else None,
        prefill=mean(lambda r: r.computed - r.began) if split else None,
        transfer=simulator.shape.transfer if split else None,
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
