"""History -> Signals: the input of the policy, for one service at one moment. Pure.

Sums over routers, because each counts its own requests only. What is not known stays None, and the coverage says how
many of the pods that should have answered did.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from phasewise_operator.scaling.signals import families
from phasewise_operator.scaling.signals.exposition import Labels
from phasewise_operator.scaling.signals.histograms import Histogram, total
from phasewise_operator.scaling.signals.history import (
    FRESH,
    LOAD_WINDOW,
    SLO_WINDOW,
    History,
    Increment,
    Newest,
    ScrapeTarget,
)
from phasewise_operator.scaling.types import Coverage, Latency, Outcomes, PodLoad, PoolSignals, Signals, TtftParts
from phasewise_runtime import contract


def signals(
    history: History, expected: Sequence[ScrapeTarget], pools: Sequence[str], attainment: float, now: float
) -> Signals:
    """`expected`: the pods, routers too, that are ready and not on their way out. `pools`: the roles that the service
    has, with pods or without. `attainment`: the share of requests that the targets are for, such as 0.95."""
    fresh = {uid: pod for uid, pod in history.newest.items() if now - pod.scrape.at <= FRESH}
    load, slo = _Window.of(history, now, LOAD_WINDOW), _Window.of(history, now, SLO_WINDOW)
    routers = [pod for pod in fresh.values() if pod.target.role == contract.ROUTER]
    requests = _pod_requests(history, load)
    results = _by_label(slo.of_role(contract.ROUTER), contract.METRIC_SLO_REQUESTS, "result")

    def coverage(role: str) -> Coverage:
        targets = [target for target in expected if target.role == role]
        return Coverage(sum(target.uid in fresh for target in targets), len(targets))

    def pool(role: str) -> PoolSignals:
        read = (fresh[target.uid] for target in expected if target.role == role and target.uid in fresh)
        return PoolSignals(coverage(role), {pod.target.name: _pod(pod, load, requests) for pod in read})

    return Signals(
        at=max((pod.scrape.at for pod in history.newest.values()), default=0.0),
        load_window=load.seconds,
        slo_window=slo.seconds,
        routers=coverage(contract.ROUTER),
        pools={role: pool(role) for role in pools},
        arrivals=sum(
            _count(parts, contract.METRIC_ARRIVALS) / seconds for parts, seconds in load.by_router(history) if seconds
        ),
        active=sum(_gauge(router, contract.METRIC_ACTIVE) or 0.0 for router in routers),
        queued=sum(_gauge(router, contract.METRIC_QUEUE_DEPTH) or 0.0 for router in routers),
        awaiting=_gauges_by(routers, contract.METRIC_AWAITING, "phase"),
        overdue=_gauges_by(routers, contract.METRIC_OVERDUE, "phase"),
        outcomes=_outcomes(results),
        revisions=_revisions(slo.of_role(contract.ROUTER)),
        parts=_parts(slo),
        ttft=_latency(_observed(slo.of_role(contract.ROUTER), contract.METRIC_TTFT), attainment),
        itl=_latency(_observed(slo.of_role(contract.ROUTER), contract.METRIC_ITL), attainment),
    )


# --- windows -----------------------------------------------------------------------------------------------

Weighted = Sequence[tuple[Increment, float]]
"""Increments with the share of each that lies in a window."""


@dataclass(frozen=True)
class _Window:
    begin: float
    end: float
    """When the routers, which count requests, were scraped last."""
    increments: Weighted

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)

    @classmethod
    def of(cls, history: History, now: float, length: float) -> _Window:
        begin = now - length
        inside = [(i, share) for i in history.increments if (share := i.overlap(begin, now)) > 0]
        counted = [i for i, _ in inside if i.target.role == contract.ROUTER]
        first = max(begin, min((i.since for i in counted), default=now))
        return cls(first, max((i.at for i in counted), default=first), inside)

    def of_role(self, role: str) -> Weighted:
        return [(i, share) for i, share in self.increments if i.target.role == role]

    def of_pod(self, uid: str) -> Weighted:
        return [(i, share) for i, share in self.increments if i.target.uid == uid]

    def by_router(self, history: History) -> list[tuple[Weighted, float]]:
        """Of each router, with the seconds that its counts are spread over: up to its newest scrape, since later counts
        are not known yet; the full window for a router that is gone, which counts nothing any more."""
        found: list[tuple[Weighted, float]] = []
        for uid in dict.fromkeys(i.target.uid for i, _ in self.of_role(contract.ROUTER)):
            newest = history.newest.get(uid)
            end = newest.scrape.at if newest else self.end
            found.append((self.of_pod(uid), max(0.0, end - self.begin)))
        return found


def _count(parts: Weighted, family: str) -> float:
    return sum(share * value for i, share in parts for value in i.counters.get(family, {}).values())


def _by_label(parts: Weighted, family: str, label: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for increment, share in parts:
        for labels, value in increment.counters.get(family, {}).items():
            sums[_label(labels, label)] += share * value
    return sums


def _outcomes(results: Mapping[str, float]) -> Outcomes:
    return Outcomes(**{result: results.get(result, 0.0) for result in contract.SLO_RESULTS})


def _revisions(routers: Weighted) -> dict[tuple[str, str], Outcomes]:
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for increment, share in routers:
        for labels, value in increment.counters.get(contract.METRIC_REVISION_REQUESTS, {}).items():
            role, revision, result = (_label(labels, name) for name in ("role", "revision", "result"))
            sums[role, revision][result] += share * value
    return {revision: _outcomes(results) for revision, results in sums.items()}


def _observed(parts: Weighted, family: str, label: tuple[str, str] | None = None) -> Histogram | None:
    return total(
        (histogram, share)
        for increment, share in parts
        for labels, histogram in increment.histograms.get(family, {}).items()
        if label is None or label in labels
    )


def _label(labels: Labels, name: str) -> str:
    return next((value for key, value in labels if key == name), "")


# --- gauges ------------------------------------------------------------------------------------------------


def _values(pod: Newest, family: str, label: tuple[str, str] | None = None) -> list[float]:
    found = pod.scrape.metrics.gauges.get(family, {}).items()
    return [value for labels, value in found if math.isfinite(value) and (label is None or label in labels)]


def _gauge(pod: Newest, family: str, label: tuple[str, str] | None = None) -> float | None:
    """Summed over the engines of a pod, where it runs several (data parallelism)."""
    values = _values(pod, family, label)
    return sum(values) if values else None


def _gauges_by(pods: Iterable[Newest], family: str, label: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for pod in pods:
        for labels, value in pod.scrape.metrics.gauges.get(family, {}).items():
            if math.isfinite(value):
                sums[_label(labels, label)] += value
    return dict(sums)


# --- pods --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PodRequests:
    """What the routers counted for engine pods, by pod name. `measured`: there was a window to count in."""

    measured: bool
    concurrency: Mapping[str, float]
    idle: Mapping[str, float]
    answered: Mapping[str, float]


def _pod_requests(history: History, load: _Window) -> _PodRequests:
    concurrency: dict[str, float] = defaultdict(float)
    idle: dict[str, float] = defaultdict(lambda: 1.0)
    answered: dict[str, float] = defaultdict(float)
    for parts, seconds in load.by_router(history):
        if not seconds:
            continue
        for pod, requests in _by_label(parts, contract.METRIC_POD_INFLIGHT_SECONDS, "pod").items():
            concurrency[pod] += requests / seconds
        # A router knows of its own requests only, and which router a request comes to has nothing to do with what the
        # others are doing: the pod is idle when all of them, independently, see it idle.
        for pod, busy in _by_label(parts, contract.METRIC_POD_BUSY_SECONDS, "pod").items():
            idle[pod] *= 1 - min(1.0, busy / seconds)
        for pod, requests in _by_label(parts, contract.METRIC_POD_REQUESTS, "pod").items():
            answered[pod] += requests
    return _PodRequests(load.seconds > 0, concurrency, idle, answered)


def _pod(pod: Newest, load: _Window, requests: _PodRequests) -> PodLoad:
    """A pod that no router has series for was sent no request: its load is 0, once there is a router to say so."""
    name, parts = pod.target.name, load.of_pod(pod.target.uid)
    usage = _values(pod, families.KV_USAGE)
    gaps = _observed(parts, families.ITL)
    return PodLoad(
        concurrency=requests.concurrency.get(name, 0.0) if requests.measured else None,
        busy=1 - requests.idle.get(name, 1.0) if requests.measured else None,
        requests=requests.answered.get(name, 0.0),
        running=_gauge(pod, families.RUNNING),
        waiting=_gauge(pod, families.WAITING),
        blocked=_gauge(pod, families.WAITING_BY_REASON, ("reason", families.CAPACITY)),
        kv_usage=sum(usage) / len(usage) if usage else None,
        itl=gaps.mean if gaps else None,
        tokens=_count(parts, families.TOKENS),
    )


# --- latency -----------------------------------------------------------------------------------------------


def _parts(slo: _Window) -> TtftParts:
    """types.TtftParts says where each is from."""
    routers, prefill, decode = (slo.of_role(role) for role in (contract.ROUTER, contract.PREFILL, contract.DECODE))

    def mean(parts: Weighted, family: str, label: tuple[str, str] | None = None) -> float | None:
        observed = _observed(parts, family, label)
        return observed.mean if observed else None

    queued, transfer = mean(decode, families.QUEUE_TIME), mean(decode, families.TRANSFER_TIME)
    return TtftParts(
        router_queue=mean(routers, contract.METRIC_TTFT_PHASE, ("phase", families.QUEUE)),
        prefill_queue=mean(prefill, families.QUEUE_TIME),
        prefill=mean(prefill, families.PREFILL_TIME),
        transfer=transfer,
        # vLLM counts a request as queued while its KV cache comes over.
        admission=None if queued is None else max(0.0, queued - (transfer or 0.0)),
        first_token=mean(decode, families.PREFILL_TIME),
    )


def _latency(observed: Histogram | None, attainment: float) -> Latency | None:
    if observed is None or observed.mean is None:
        return None
    p50, p95, at_attainment = (observed.quantile(q) for q in (0.5, 0.95, attainment))
    if p50 is None or p95 is None or at_attainment is None:
        return None
    return Latency(observed.count, observed.mean, p50, p95, at_attainment)
