"""Whether a request met its latency targets. Pure: measurements in, the result it counts as out.

| the request ended            | counts as                                                                          |
|------------------------------|------------------------------------------------------------------------------------|
| failed                       | failed                                                                             |
| in an error of the client's  | nothing                                                                            |
| left before its first token  | ttft_missed where it had waited longer than the target, else nothing               |
| left in the stream, no ITL   | ttft_missed where TTFT was, else nothing                                           |
| otherwise, TTFT measured     | what TTFT and ITL say; where ITL was not measured, such as with one token, TTFT only  |
| otherwise                    | nothing                                                                            |
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise_runtime.contract import (
    SLO_BOTH_MISSED,
    SLO_FAILED,
    SLO_ITL_MISSED,
    SLO_MET,
    SLO_TTFT_MISSED,
)
from phasewise_runtime.router.outcome import CLIENT_CLOSED, CLIENT_ERROR, FAILED


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds; 0 is no target."""

    ttft: float = 0.0
    itl: float = 0.0

    @property
    def any(self) -> bool:
        return self.ttft > 0 or self.itl > 0

    def overdue(self, waited: float) -> bool:
        """A TTFT of `waited` seconds misses the target."""
        return 0 < self.ttft < waited

    def slow(self, itl: float) -> bool:
        return 0 < self.itl < itl


@dataclass(frozen=True, slots=True)
class Seen:
    """The latencies of a request that has ended, in seconds; None: not measured."""

    ttft: float | None = None
    itl: float | None = None
    waited: float | None = None
    """Time that it waited without a first token until it ended. None where one came, or where that is unknown."""


def judge(ttft: float, itl: float | None, targets: Targets) -> str:
    late, slow = targets.overdue(ttft), itl is not None and targets.slow(itl)
    if late and slow:
        return SLO_BOTH_MISSED
    if late:
        return SLO_TTFT_MISSED
    return SLO_ITL_MISSED if slow else SLO_MET


def result(outcome: str, seen: Seen, targets: Targets) -> str | None:
    """The result that a request with this `outcome` counts as; None: it is not counted."""
    if not targets.any or outcome == CLIENT_ERROR:
        return None
    if outcome in FAILED:
        return SLO_FAILED
    if outcome == CLIENT_CLOSED and seen.waited is not None:
        # Impatient clients must not hide a breach.
        return SLO_TTFT_MISSED if targets.overdue(seen.waited) else None
    if outcome == CLIENT_CLOSED and seen.itl is None and seen.ttft is not None:
        # Nor may clients that leave a slow stream, whose ITL is not known.
        return SLO_TTFT_MISSED if targets.overdue(seen.ttft) else None
    return None if seen.ttft is None else judge(seen.ttft, seen.itl, targets)
