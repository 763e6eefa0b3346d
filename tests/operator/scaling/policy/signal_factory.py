"""Signals by hand for tests of the policy: a quiet service unless the test says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from phasewise_operator.scaling.policy.decide import Memory, decide
from phasewise_operator.scaling.policy.itl_law import ItlLaw
from phasewise_operator.scaling.policy.load import Load, PoolLoad
from phasewise_operator.scaling.types import (
    Coverage,
    PodLoad,
    PoolSignals,
    PoolState,
    Signals,
    SizeDecision,
    SloTargets,
)

TARGETS = SloTargets(ttft=2.0, itl=0.04, attainment=0.95)
TICK = 2.0


def pool(role: str, size: int = 1, **changes: Any) -> PoolState:
    return replace(PoolState(role, min=1, max=10, desired=size, ready=size), **changes)


def pods(role: str, number: int, read: int | None = None, **load: Any) -> PoolSignals:
    """Pods that are alike."""
    read = number if read is None else read
    return PoolSignals(Coverage(read, number), {f"{role}-{i}": PodLoad(**load) for i in range(read)})


def make_signals(pools: Mapping[str, PoolSignals], **changes: Any) -> Signals:
    return replace(Signals(at=0.0, load_window=10.0, slo_window=30.0, routers=Coverage(1, 1), pools=pools), **changes)


def load(**changes: Any) -> Load:
    """An aggregated load: none, unless the test says otherwise."""
    return replace(Load(10.0, 1.0, 0.0, {}, {}, PoolLoad(), PoolLoad(), quiet=False), **changes)


def learned_law(*, floor: float, slope: float, streams: Sequence[float]) -> ItlLaw:
    """The law of ITL after a sample for each number of streams, all on the line floor + slope * streams."""
    law = ItlLaw()
    for number in streams:
        law = law.learn(number, floor + slope * number, 1.0)
    return law


def busy(prefill: int = 1, decode: int = 1, rate: float = 1.0, **changes: Any) -> Signals:
    """Prompts of 0.5 s, outputs of 100 tokens at 20 ms, shared evenly by the pods."""
    a, b = rate / prefill, rate / decode
    done = min(a, 2.0)
    return make_signals(
        {
            "prefill": pods("prefill", prefill, concurrency=a * 0.5, busy=min(1.0, a * 0.5), requests=done * 10),
            "decode": pods(
                "decode",
                decode,
                concurrency=b * 2,
                busy=min(1.0, b * 2),
                requests=done * prefill / decode * 10,
                running=b * 2,
                itl=0.02,
                tokens=b * 1000,
            ),
        },
        **{"arrivals": rate, "active": rate * 2.5, **changes},
    )


class Service:
    """Calls the policy tick by tick, as the loop does, and applies its sizes at once unless `obey` is False."""

    def __init__(self, *pools: PoolState, budget: int | None = None, stabilization: float = 60.0) -> None:
        self.pools = {p.role: p for p in pools or (pool("prefill"), pool("decode"))}
        self.budget, self.stabilization = budget, stabilization
        self.now, self.memory, self.targets = 1000.0, Memory(), TARGETS

    def tick(self, signals: Signals | None, *, age: float = 0.0, obey: bool = True) -> Mapping[str, SizeDecision]:
        self.now += TICK
        signals = signals and replace(signals, at=self.now - age)
        result = decide(
            self.now, self.targets, list(self.pools.values()), signals, self.budget, self.stabilization, self.memory
        )
        self.memory = result.memory
        if obey:
            for role, decision in result.decisions.items():
                self.change(role, desired=decision.desired, ready=decision.desired)
        return result.decisions

    def run(self, seconds: float, signals: Signals | None) -> Mapping[str, SizeDecision]:
        decisions: Mapping[str, SizeDecision] = {}
        for _ in range(max(1, round(seconds / TICK))):
            decisions = self.tick(signals)
        return decisions

    def change(self, role: str, **changes: Any) -> None:
        self.pools[role] = replace(self.pools[role], **changes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(p.desired for p in self.pools.values())
