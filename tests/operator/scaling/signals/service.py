"""A service for the tests: pods that count, scraped round after round."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.operator.scaling.signals.exposition import Engine, Router

from phasewise_operator.scaling.signals.build import signals
from phasewise_operator.scaling.signals.history import History, Scrape, ScrapeTarget
from phasewise_operator.scaling.types import Signals
from phasewise_runtime import contract

P, D, R = contract.PREFILL, contract.DECODE, contract.ROUTER


def pod(role: str, name: str, uid: str = "") -> ScrapeTarget:
    return ScrapeTarget(role, name, uid or name, "10.0.0.1")


@dataclass
class Service:
    """Pods that count, and the history of their scrapes. `silent`: those that do not answer."""

    pods: dict[ScrapeTarget, Router | Engine]
    history: History = field(default_factory=History)
    now: float = 100.0
    silent: set[ScrapeTarget] = field(default_factory=set[ScrapeTarget])

    def round(self, seconds: float = 2.0) -> None:
        self.now += seconds
        scrapes = {t.uid: Scrape(self.now, p.metrics()) for t, p in self.pods.items() if t not in self.silent}
        self.history = self.history.fold(self.pods, scrapes, self.now)

    def signals(self, later: float = 0.0, pools: tuple[str, ...] = (P, D), attainment: float = 0.95) -> Signals:
        return signals(self.history, list(self.pods), pools, attainment, self.now + later)
