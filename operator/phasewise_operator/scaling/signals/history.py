"""Scrapes, round after round -> the newest metrics of each pod and the increments of its counters. Pure.

A value: fold() returns the next history. Bounded: increments older than the longest window are dropped, and pods that
are gone are forgotten, while their increments stay in the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from phasewise_operator.scaling.signals.exposition import Labels, ParsedMetrics
from phasewise_operator.scaling.signals.histograms import Histogram, rise

LOAD_WINDOW: Final = 10.0
"""Seconds. Five rounds: long enough that single requests do not make a rate, short enough that a burst is seen whole
within the five seconds that a scale-up may take."""
SLO_WINDOW: Final = 30.0
"""Seconds. An attainment of 95 % needs some tens of requests before one more or less stops to decide it."""
FRESH: Final = 10.0
"""Seconds. A gauge is a moment: older than the load window, it says nothing about the load."""


@dataclass(frozen=True)
class ScrapeTarget:
    """One pod that is scraped."""

    role: str
    name: str
    uid: str
    address: str


@dataclass(frozen=True)
class Scrape:
    """The metrics of one pod and when they were read, on the clock that `now` is on."""

    at: float
    metrics: ParsedMetrics
    seconds: float = 0.0
    """CPU time that parsing took."""


@dataclass(frozen=True)
class Increment:
    """What one pod counted between two scrapes. Series that did not move are left out: an idle pod costs nothing."""

    target: ScrapeTarget
    since: float
    at: float
    counters: Mapping[str, Mapping[Labels, float]]
    histograms: Mapping[str, Mapping[Labels, Histogram]]

    def overlap(self, begin: float, end: float) -> float:
        """Share of it that lies in the window. After a gap an increment covers more than a round: it is taken to have
        come evenly, so that what went on for a minute does not look as if it had come in the last two seconds."""
        return max(0.0, min(self.at, end) - max(self.since, begin)) / (self.at - self.since)


@dataclass(frozen=True)
class Newest:
    target: ScrapeTarget
    scrape: Scrape


@dataclass(frozen=True)
class History:
    newest: Mapping[str, Newest] = field(default_factory=dict[str, Newest])
    """By uid, so that a new pod of an old name begins anew."""
    increments: tuple[Increment, ...] = ()

    def fold(self, targets: Iterable[ScrapeTarget], scrapes: Mapping[str, Scrape], now: float) -> History:
        """One round. `targets`: all pods; `scrapes`, by uid: of those that answered."""
        newest: dict[str, Newest] = {}
        increments = [i for i in self.increments if i.at > now - SLO_WINDOW]
        for target in targets:
            before, scrape = self.newest.get(target.uid), scrapes.get(target.uid)
            if before and (not scrape or scrape.at <= before.scrape.at):
                newest[target.uid] = before
            elif scrape:
                newest[target.uid] = Newest(target, scrape)
                if before:
                    increments.append(_increment(target, before.scrape, scrape))
        return History(newest, tuple(increments))


def _increment(target: ScrapeTarget, before: Scrape, after: Scrape) -> Increment:
    counters = {
        family: _risen(before.metrics.counters.get(family, {}), values)
        for family, values in after.metrics.counters.items()
    }
    histograms = {
        family: _observed(before.metrics.histograms.get(family, {}), values)
        for family, values in after.metrics.histograms.items()
    }
    return Increment(
        target,
        before.at,
        after.at,
        {family: moved for family, moved in counters.items() if moved},
        {family: moved for family, moved in histograms.items() if moved},
    )


def _risen(before: Mapping[Labels, float], after: Mapping[Labels, float]) -> dict[Labels, float]:
    """A value that fell began again at 0. A series that is new on a known pod began at 0, too."""
    risen: dict[Labels, float] = {}
    for labels, value in after.items():
        earlier = before.get(labels, 0.0)
        if value != earlier:
            risen[labels] = value - earlier if value > earlier else value
    return {labels: value for labels, value in risen.items() if value}


def _observed(before: Mapping[Labels, Histogram], after: Mapping[Labels, Histogram]) -> dict[Labels, Histogram]:
    observed: dict[Labels, Histogram] = {}
    for labels, histogram in after.items():
        earlier = before.get(labels)
        if earlier and earlier.counts == histogram.counts and earlier.bounds == histogram.bounds:
            continue
        risen = rise(earlier, histogram)
        if risen.count:
            observed[labels] = risen
    return observed
