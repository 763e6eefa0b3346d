"""Circuit breaker of one pod, fed by its requests (passive) and, while it is open, by health probes. Pure.

The states are those of Nygard, "Release It!", as resilience4j has them; ejection after failures in a row, with a
back-off that grows by ejection and a pool that is never emptied, follows Envoy's outlier detection.

    closed --hard failure, or THRESHOLD soft ones in a row--> open --probe ok after the back-off--> half_open
    half_open --success--> closed         half_open --any failure--> open, with twice the back-off

Soft failures never open the breaker of the last pod that serves: they may be the fault of the requests.

So a pod whose /health succeeds while its requests fail gets one request at a time, at growing intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

THRESHOLD = 3
"""Soft failures in a row (a status of 500, a timeout) that eject; a refused connection ejects at once."""
FIRST_BACKOFF = 1.0
MAX_BACKOFF = 30.0
FORGIVE_AFTER = 60.0
"""Seconds without an ejection after which the back-off starts from the first again."""


@dataclass(frozen=True, slots=True)
class Breaker:
    state: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    ejections: int = 0
    until: float = 0.0
    """While open: the time of the next probe."""

    def probe_due(self, now: float) -> bool:
        return self.state == "open" and now >= self.until


def on_failure(breaker: Breaker, now: float, *, hard: bool, last: bool = False) -> Breaker:
    """A request failed; the result is open where that ejects the pod. `last`: no other pod could take its place."""
    failures = breaker.failures + 1
    if breaker.state == "open":
        return breaker
    if hard or (not last and (breaker.state == "half_open" or failures >= THRESHOLD)):
        return _open(breaker, now)
    return replace(breaker, failures=failures)


def on_success(breaker: Breaker) -> Breaker:
    """A request succeeded. An open breaker stays open: that request was sent before the ejection."""
    if breaker.state == "open":
        return breaker
    return replace(breaker, state="closed", failures=0)


def on_probe(breaker: Breaker, now: float, *, ok: bool) -> Breaker:
    """A health probe of an ejected pod ended."""
    if breaker.state != "open":
        return breaker
    if ok:
        return replace(breaker, state="half_open", failures=0)
    return replace(breaker, until=now + backoff(breaker.ejections))


def backoff(ejections: int) -> float:
    return min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** max(0, ejections - 1))


def _open(breaker: Breaker, now: float) -> Breaker:
    forgiven = breaker.until and now - breaker.until > FORGIVE_AFTER
    ejections = 1 if forgiven else breaker.ejections + 1
    return Breaker("open", failures=0, ejections=ejections, until=now + backoff(ejections))
