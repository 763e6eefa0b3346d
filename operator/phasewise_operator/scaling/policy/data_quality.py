"""Do the data suffice to change a size? Unknown is not zero: else sizes are held, and the message says why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise_operator.scaling.policy.format import counted, seconds
from phasewise_operator.scaling.types import Coverage, PoolState, Signals

MAX_AGE = 10.0
"""Seconds: five scrapes in a row have failed."""
MIN_WINDOW = 3.5
"""Seconds, nearly two scrape intervals: in a single one, streams that end together look like a rate, and an operator
that has just begun would act on it."""
MIN_SHARE = 0.5
"""At half of the pods or fewer, what was read says less than what was not."""

NO_SIGNAL = "NoSignal"
UNREADABLE = "Unreadable"
STALE = "Stale"
NO_ROUTER = "NoRouter"


@dataclass(frozen=True)
class Insufficient:
    """Why nothing may be changed, as a reason and for people."""

    reason: str
    message: str


def usable(now: float, pools: Sequence[PoolState], signals: Signals | None) -> Signals | Insufficient:
    """The signals where they can be decided on, else why not. The first of these that holds names the reason.

    | nothing was ever read                    | NoSignal   |
    | no router is ready                       | NoRouter   |
    | the newest older than MAX_AGE            | Stale      |
    | load window shorter than MIN_WINDOW      | NoSignal   |
    | routers or a pool read at most by half   | Unreadable |

    So what a single round could not read is no fault yet: the first one of an operator that begins is its busiest.
    """
    if signals is None or (signals.at == 0 and signals.routers.of > 0):
        return Insufficient(NO_SIGNAL, "Sizes are held: nothing has been read yet.")
    if signals.routers.of == 0:
        return Insufficient(NO_ROUTER, "Sizes are held: no router is ready, so nobody can say what arrives.")
    if now - signals.at > MAX_AGE:
        return Insufficient(
            STALE, f"Sizes are held: the newest sample is older than {seconds(MAX_AGE)}; see why scrapes fail."
        )
    if signals.load_window < MIN_WINDOW:
        return Insufficient(NO_SIGNAL, f"Sizes are held until {seconds(MIN_WINDOW)} of traffic have been watched.")
    if missing := _unreadable(pools, signals):
        return Insufficient(UNREADABLE, f"Sizes are held: {missing}.")
    return signals


def complete(signals: Signals) -> bool:
    """All pods that should have answered did."""
    return signals.routers.share >= 1 and all(p.coverage.share >= 1 for p in signals.pools.values())


def _unreadable(pools: Sequence[PoolState], signals: Signals) -> str | None:
    if signals.routers.share <= MIN_SHARE:
        return _missing("router", signals.routers)
    for pool in pools:
        found = signals.pools.get(pool.role)
        coverage = found.coverage if found else Coverage(0, 0)
        if coverage.of == 0 and pool.ready:
            return _missing(f"{pool.role} pod", Coverage(0, pool.ready))
        if coverage.share <= MIN_SHARE:
            return _missing(f"{pool.role} pod", coverage)
    return None


def _missing(noun: str, coverage: Coverage) -> str:
    return f"{coverage.of - coverage.read} of {counted(coverage.of, noun)} cannot be scraped"
