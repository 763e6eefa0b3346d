"""What a prompt costs a prefill replica, learned from what the routers see. Pure.

Busy seconds a leg, not seconds a leg: an engine that computes prompts together takes each longer, yet serves more. In
a pool that is never idle busy seconds a leg are exactly the reciprocal of its throughput.
Imports `load`, `memory` and `state` only.
"""

from __future__ import annotations

from dataclasses import replace

from phasewise_operator.scaling.policy.load import Load
from phasewise_operator.scaling.policy.memory import Prompts
from phasewise_operator.scaling.types import TtftParts

COST_LEGS = 10.0
"""Legs that the cost is averaged over where few come: enough to calm single long prompts, soon overruled."""
SHARE_LEGS = 50.0
"""The same for the share of requests that take a prefill leg: it must not fall because prefill lags for a moment."""
ROUTER_SECONDS = 0.01
"""What router, proxy and network add to TTFT: 5 to 10 ms."""
AFTER_SECONDS = 30.0
"""Time constant for what follows prefill: the window that it is measured over."""


def learn(old: Prompts, load: Load, parts: TtftParts, elapsed: float, waiting: bool) -> Prompts:
    """With what the last `elapsed` seconds have shown; `waiting`: prompts wait behind others in prefill."""
    fresh = min(1.0, elapsed / load.window)
    busy, legs = _bounded(old.busy, old.legs, COST_LEGS)
    new = replace(old, busy=busy + load.prefill.busy * load.window * fresh, legs=legs + load.prefill.legs * fresh)
    if not waiting:
        taken, served = _bounded(old.taken, old.served, SHARE_LEGS)
        new = replace(new, taken=taken + load.prefill.legs * fresh, served=served + load.decode.legs * fresh)
    if parts.prefill is not None:
        new = replace(new, most=parts.prefill + ROUTER_SECONDS)
    if load.decode.blocked == 0 and (after := _after(parts)) is not None:
        weight = 1.0 if old.after is None else min(1.0, elapsed / AFTER_SECONDS)
        new = replace(new, after=(old.after or 0.0) * (1 - weight) + after * weight)
    return new


def _bounded(total: float, count: float, most: float) -> tuple[float, float]:
    keep = min(1.0, most / count) if count > 0 else 1.0
    return total * keep, count * keep


def _after(parts: TtftParts) -> float | None:
    if parts.first_token is None:
        return None
    return (parts.transfer or 0.0) + parts.first_token + ROUTER_SECONDS
