"""What speaks against pods and revisions, and for how long: a rollout fails only by what has lasted. Pure.

A value: fold() returns the next. It can be lost: then it has to last anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from phasewise_operator.scaling.types import Outcomes
from phasewise_runtime import contract

LASTING_SECONDS: Final = 60.0
"""Two SLO windows: one hiccup, or the first requests to cold caches, have passed by then."""
MIN_REQUESTS: Final = 20
"""Of each of two revisions, to compare them."""
MARGIN: Final = 0.2
"""Share of requests by which the attainment of a new revision may be below that of another."""
SIGMAS: Final = 3.0
"""So many standard errors a difference must have, too. Of 20 requests each, two revisions that both meet their targets
in 95 % differ by 0.07 (one standard error), in 70 % by 0.14: there the margin alone would often be passed by chance."""

Revision = tuple[str, str]
"""Role and revision."""
K = TypeVar("K")


@dataclass(frozen=True)
class Evidence:
    kv_fails_since: Mapping[str, float] = field(default_factory=dict[str, float])
    """By pod name; on the clock that `now` is on."""
    slower_since: Mapping[Revision, float] = field(default_factory=dict[Revision, float])
    slower_by: Mapping[Revision, str] = field(default_factory=dict[Revision, str])
    """The figures."""
    now: float = 0.0

    def fold(self, kv_failed: Collection[str], outcomes: Mapping[Revision, Outcomes], now: float) -> Evidence:
        """One round. `kv_failed`: pods whose last KV transfer failed. `outcomes`: of the SLO window."""
        slower = slower_revisions(outcomes)
        kv_since, since = _since(self.kv_fails_since, kv_failed, now), _since(self.slower_since, slower, now)
        return Evidence(kv_since, since, slower, now)

    @property
    def kv_fails(self) -> Mapping[str, str]:
        """Pods whose KV transfer has failed for long enough, and how."""
        text = "its KV transfers have failed for a minute, so that prompts are computed twice: see its log"
        return {pod: f"pod {pod}: {text}" for pod in self._lasting(self.kv_fails_since)}

    @property
    def slower(self) -> Mapping[Revision, str]:
        """Revisions that have been slower than another for long enough, with the figures."""
        return {revision: self.slower_by[revision] for revision in self._lasting(self.slower_since)}

    def _lasting(self, since: Mapping[K, float]) -> list[K]:
        return [key for key, begin in since.items() if self.now - begin >= LASTING_SECONDS]


def _since(before: Mapping[K, float], found: Collection[K], now: float) -> dict[K, float]:
    return {key: before.get(key, now) for key in found}


def slower_revisions(outcomes: Mapping[Revision, Outcomes]) -> dict[Revision, str]:
    """Those that meet their targets clearly less often than another revision of the same role, with the figures."""
    found: dict[Revision, str] = {}
    for (role, revision), mine in outcomes.items():
        for (other_role, other), theirs in outcomes.items():
            if role == other_role and revision != other and _is_clearly_less(role, mine, theirs):
                found[role, revision] = (
                    f"it met its targets in {_met(role, mine):.0%} of {mine.judged:.0f} requests, and the old revision "
                    f"{other} in {_met(role, theirs):.0%} of {theirs.judged:.0f}"
                )
    return found


def _is_clearly_less(role: str, mine: Outcomes, theirs: Outcomes) -> bool:
    if min(mine.judged, theirs.judged) < MIN_REQUESTS:
        return False
    less = _met(role, theirs) - _met(role, mine)
    pooled = (_met(role, mine) * mine.judged + _met(role, theirs) * theirs.judged) / (mine.judged + theirs.judged)
    error = math.sqrt(pooled * (1 - pooled) * (1 / mine.judged + 1 / theirs.judged))
    return less > MARGIN and less > SIGMAS * error


def _met(role: str, outcomes: Outcomes) -> float:
    """Share of requests that missed nothing by this role. A decode pod has a part in TTFT, too: it loads the KV, makes
    the first token, and computes prompts where no prefill pod does. A prefill pod has none in ITL."""
    missed = outcomes.ttft_missed + outcomes.both_missed + outcomes.failed
    if role == contract.DECODE:
        missed += outcomes.itl_missed
    return 1 - missed / outcomes.judged
