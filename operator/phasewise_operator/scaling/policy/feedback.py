"""Measured latency against the targets: is one missed, by which pool, and would a replica help? Pure.

The bottleneck gets the replica. TTFT is made of parts; only those that are made by waiting shrink with more replicas:

| part          | belongs to                                                           |
|---------------|----------------------------------------------------------------------|
| router queue  | decode where it is at its limits, prefill where prompts wait there    |
| prefill queue | prefill                                                              |
| prefill       | prefill where pods compute several prompts together, else nobody      |
| transfer      | nobody                                                               |
| admission     | decode                                                               |
| first token   | decode, as far as it is longer than the ITL target                    |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from phasewise_operator.scaling.policy.format import figure, percent, seconds
from phasewise_operator.scaling.policy.itl_law import HEADROOM
from phasewise_operator.scaling.policy.load import ALONE, Load
from phasewise_operator.scaling.policy.prefill import PROMPT_TOO_LONG
from phasewise_operator.scaling.types import Signals, SloTargets, TtftParts
from phasewise_runtime.contract import DECODE, PREFILL

TTFT_MISSED = "TtftMissed"
ITL_MISSED = "ItlMissed"

ENOUGH_JUDGED = 5.0
CHANCE = 2.0
"""Standard deviations: of 20 requests one or two are missed by chance at 95 %; judged every 2 s, a smaller margin
would add a replica now and then for nothing."""
LEAST_MISS = 0.005
"""Share of misses that is allowed at attainment 100 %."""
WORTH = 0.1
"""Share of the target below which a part of TTFT is not what spoils it."""


@dataclass(frozen=True)
class Miss:
    """A target is missed by more than chance."""

    role: str | None
    """The pool that a replica would help; None: none would."""
    reason: str
    message: str


@dataclass(frozen=True)
class _Judged:
    requests: float
    missed: float

    def beyond_chance(self, attainment: float) -> bool:
        allowed = max(1 - attainment, LEAST_MISS)
        expected = self.requests * allowed
        return self.requests >= ENOUGH_JUDGED and self.missed > expected + CHANCE * math.sqrt(expected * (1 - allowed))

    @property
    def text(self) -> str:
        return f"met by {percent(round(1 - self.missed / self.requests, 2))} of requests"


def ttft_miss(
    signals: Signals, load: Load, targets: SloTargets, *, decode_full: bool, prefill_waits: bool
) -> Miss | None:
    """Who makes TTFT too long; requests overdue now count as missed, and failed ones say nothing about latency."""
    judged = _ttft_judged(signals, load, targets)
    if not judged.beyond_chance(targets.attainment):
        return None
    aggregated = PREFILL not in signals.pools
    queue = _queue_owner(decode_full, prefill_waits, aggregated)
    if sum(load.overdue.values()) > judged.missed / 2:
        role, where = _by_overdue(load, signals.parts, queue, aggregated)
    else:
        role, where = _by_parts(signals.parts, load, targets, queue, aggregated)
    reason = PROMPT_TOO_LONG if role is None and where.startswith("prefill") else TTFT_MISSED
    tail = "" if role else ", which more replicas do not shorten"
    goal = f"TTFT under {seconds(targets.ttft)} is {judged.text}, {percent(targets.attainment)} should"
    message = f"{goal}: it is spent in {where}{tail}"
    return Miss(role, reason, message)


def itl_miss(signals: Signals, load: Load, targets: SloTargets, *, attainable: bool) -> Miss | None:
    """ITL is decode's, and curable where streams share a replica."""
    outcomes = signals.outcomes
    judged = _Judged(outcomes.judged - outcomes.failed, outcomes.itl_missed + outcomes.both_missed)
    # A request is judged when it ends: one that was slow minutes ago says nothing of pods that are quick now.
    past = load.decode.slowest is not None and load.decode.slowest <= HEADROOM * targets.itl
    if past or not judged.beyond_chance(targets.attainment):
        return None
    batch = load.decode.batch
    curable = attainable and batch >= ALONE
    tail = "" if curable else ", which more replicas do not shorten"
    message = (
        f"ITL under {seconds(targets.itl)} is {judged.text}, {percent(targets.attainment)} should: "
        f"a decode pod has {figure(batch)} streams{tail}"
    )
    return Miss(DECODE if curable else None, ITL_MISSED, message)


def _ttft_judged(signals: Signals, load: Load, targets: SloTargets) -> _Judged:
    """By first tokens, and by those overdue. Outcomes come at the end of requests, late: they only refine the share."""
    outcomes, ttft = signals.outcomes, signals.ttft
    overdue = sum(load.overdue.values())
    judged = outcomes.judged - outcomes.failed
    share = (outcomes.ttft_missed + outcomes.both_missed) / judged if judged else 0.0
    if ttft is None or ttft.at_attainment <= targets.ttft:
        share = 0.0
    elif ttft.p50 > targets.ttft:
        share = max(share, 0.5)
    count = ttft.count if ttft else 0.0
    return _Judged(count + overdue, share * count + overdue)


def _queue_owner(decode_full: bool, prefill_waits: bool, aggregated: bool) -> str | None:
    if decode_full or aggregated:
        return DECODE
    return PREFILL if prefill_waits else None


def _by_overdue(load: Load, parts: TtftParts, queue: str | None, aggregated: bool) -> tuple[str | None, str]:
    """By the phase that most overdue requests are in: those who suffer worst have no finished parts yet."""
    phase = max(sorted(load.overdue), key=lambda p: load.overdue[p])
    if phase == "queue":
        return queue, "the router's queue"
    if phase == "prefill":
        shared = load.prefill.batch >= ALONE
        return (PREFILL, "prefill, behind other prompts") if shared else (None, "prefill of single prompts")
    if aggregated or load.decode.blocked > 0:
        return DECODE, "decode admission"
    if parts.admission is None:
        return None, "decode or KV transfer, which of them is not known since no request has come through"
    return (DECODE, "decode admission") if parts.admission >= (parts.transfer or 0.0) else (None, "KV transfer")


def _by_parts(
    parts: TtftParts, load: Load, targets: SloTargets, queue: str | None, aggregated: bool
) -> tuple[str | None, str]:
    """By the largest part that waiting makes, unless what remains without any wait is too long by itself."""
    if aggregated:  # a prefill pool that was is still in the window
        parts = replace(parts, prefill_queue=None, prefill=None)
    prefill, first = parts.prefill or 0.0, parts.first_token or 0.0
    shared = (load.decode if aggregated else load.prefill).batch >= ALONE
    fixed = {
        "prefill of single prompts": first if aggregated and not shared else 0.0 if shared else prefill,
        "KV transfer": parts.transfer or 0.0,
    }
    if sum(fixed.values()) >= targets.ttft:
        return None, _named(max(fixed, key=lambda k: fixed[k]), fixed)
    waits: dict[str, tuple[str | None, float]] = {
        "the router's queue": (queue, parts.router_queue or 0.0),
        "prefill, behind other prompts": (PREFILL, (parts.prefill_queue or 0.0) + (prefill if shared else 0.0)),
        "decode admission": (DECODE, parts.admission or 0.0),
        "decode's first step": (DECODE, max(0.0, first - targets.itl) if shared or not aggregated else 0.0),
    }
    where = max(waits, key=lambda k: waits[k][1])
    role, spent = waits[where]
    if spent < WORTH * targets.ttft:
        return None, "prefill of the longest prompts, since hardly any request waits"
    return role, f"{where} ({seconds(spent)} on average)"


def _named(where: str, spent: Mapping[str, float]) -> str:
    return f"{where} ({seconds(spent[where])} on average)"
