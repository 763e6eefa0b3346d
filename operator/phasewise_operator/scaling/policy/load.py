"""The load of the pools now: sums over pods, scaled up by what was not read. Pure.

Seen at half, loads are taken for double: an error makes a pool too large for
a moment, never too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phasewise_operator.scaling.types import PodLoad, PoolSignals, Signals
from phasewise_runtime.contract import DECODE, PREFILL

QUEUE = 2.0
"""Mean requests in flight on a pod from which on some wait for others."""
ENOUGH_REQUESTS = 5.0
"""Below five the mean of a skewed quantity is off by half as easily as not."""
HALF = 0.5
ALONE = 1.5
"""Mean requests on a busy pod below which they mostly do not share it, so that more pods would not make it faster."""
CROWDED = 0.5
"""Share of the fullest pod's streams. A full pod that runs at least this share shows how many streams any pod holds.
One that runs fewer is full of a few long streams, which says nothing about other pods, unless most pods are like it."""
KV_FULL = 0.85
"""Use of the KV cache beyond which requests begin to be preempted or to wait, since streams grow."""

AVERAGE_SECONDS = 30.0
"""Time constant while nothing but chance is seen."""
CHANCE = 2.0
"""Standard deviations of a Poisson count: passed upwards by chance in one load window of fifty. More would be calmer,
and late on a rising load."""


@dataclass(frozen=True)
class PoolLoad:
    """Sums over the pods of a pool."""

    concurrency: float = 0.0
    """Requests in flight, mean over the load window."""
    busy: float = 0.0
    """Pods with work, mean over the load window."""
    requests: float = 0.0
    """Requests answered in the load window."""
    blocked: float = 0.0
    """Requests that wait for decode admission now."""
    capacity: float | None = None
    """Streams that run on a pod where others wait for admission: what it holds; None where none waits."""
    free: float = 0.0
    """Streams that pods where none waits could take, as far as `capacity` is known."""
    fullest: float = 0.0
    """Streams that run on the pod that has most."""
    tokens: float = 0.0
    """Output tokens in the load window."""
    slowest: float | None = None
    """Highest ITL of a pod over the load window, seconds."""
    kv: float | None = None
    """Mean share of the KV cache in use; None where no pod says."""

    uneven: bool = False
    """A pod has a queue while another has little to do: requests stay in the queue of the pod they were sent to."""

    @property
    def batch(self) -> float:
        """Requests in flight on a pod while it has any."""
        return self.concurrency / self.busy if self.busy > 0 else 0.0


@dataclass(frozen=True)
class Load:
    """Of a service."""

    window: float
    arrivals: float
    """Requests per second."""
    queued: float
    awaiting: dict[str, float]
    overdue: dict[str, float]
    prefill: PoolLoad
    decode: PoolLoad
    quiet: bool


def aggregate(signals: Signals, batch: int = 0) -> Load:
    """Sums of the signals. `batch`: streams that a decode engine runs at most; 0: not known."""
    unseen = 1 / signals.routers.share
    return Load(
        window=signals.load_window,
        arrivals=signals.arrivals * unseen,
        queued=signals.queued * unseen,
        awaiting={phase: n * unseen for phase, n in signals.awaiting.items()},
        overdue={phase: n * unseen for phase, n in signals.overdue.items()},
        prefill=_of_pool(signals.pools.get(PREFILL), unseen, 0),
        decode=_of_pool(signals.pools.get(DECODE), unseen, batch),
        quiet=signals.quiet,
    )


def _of_pool(pool: PoolSignals | None, unseen_routers: float, batch: int) -> PoolLoad:
    if pool is None or not pool.pods:
        return PoolLoad()
    pods = list(pool.pods.values())
    unseen = 1 / pool.coverage.share if pool.coverage.share > 0 else 1.0
    by_routers = unseen * unseen_routers
    itl = [p.itl for p in pods if p.itl is not None]
    fullest = max(p.running or 0.0 for p in pods)
    places = _places(pods, batch, CROWDED * fullest)
    crowded = [r for r, b in places if b and r]
    capacity = sum(crowded) / len(crowded) if crowded else None
    kv = [p.kv_usage for p in pods if p.kv_usage is not None]
    return PoolLoad(
        concurrency=sum(p.concurrency or 0.0 for p in pods) * by_routers,
        busy=sum(_busy(p, unseen_routers) for p in pods) * unseen,
        requests=sum(p.requests for p in pods) * by_routers,
        uneven=any((p.concurrency or 0.0) >= QUEUE for p in pods) and any((p.busy or 0.0) < HALF for p in pods),
        capacity=capacity,
        free=sum(max(0.0, capacity - r) for r, b in places if not b) * unseen if capacity else 0.0,
        fullest=fullest,
        blocked=sum(blocked for _, blocked in places) * unseen,
        tokens=sum(p.tokens for p in pods) * unseen,
        slowest=max(itl) if itl else None,
        kv=sum(kv) / len(kv) if kv else None,
    )


def _places(pods: list[PodLoad], batch: int, many: float) -> list[tuple[float, float]]:
    """Of each pod the streams that run and the requests that wait for admission.

    Requests behind a few very long streams, where most pods run many, stay in their pod's queue: no replica helps them.
    """
    found = [(p.running or 0.0, _blocked(p, batch)) for p in pods]
    few = [running for running, blocked in found if blocked and running < many]
    if len(few) > len(pods) / 2:
        return found
    return [(running, blocked if running >= many else 0.0) for running, blocked in found]


def _blocked(pod: PodLoad, batch: int) -> float:
    """Requests that wait for admission. An engine counts those, too, that merely wait for their turn in a step."""
    if batch and (pod.running or 0.0) < batch and (pod.kv_usage or 0.0) <= KV_FULL:
        return 0.0
    return pod.blocked or 0.0


def _busy(pod: PodLoad, unseen_routers: float) -> float:
    # Two routers may keep a pod busy in the same second: their sum may pass 1, its time may not.
    return min(1.0, (pod.busy or 0.0) * unseen_routers)


def steady_arrivals(average: float | None, rate: float, window: float, elapsed: float) -> float:
    """The new average; the rate itself where it differs from the old average by more than chance.

    Ten seconds of five requests/s hold 36 to 64 requests by chance alone: the pools would follow that noise.
    """
    if average is None or window <= 0:
        return rate
    chance = CHANCE * math.sqrt(max(average, rate) / window)
    if abs(rate - average) > chance:
        return rate
    return average + (rate - average) * min(1.0, elapsed / AVERAGE_SECONDS)
