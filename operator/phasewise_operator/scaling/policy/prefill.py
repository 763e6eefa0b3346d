"""How many prefill replicas the load needs: a replica is a server, prompts are its customers. Pure.

What a prompt costs a replica is learned from the routers' counts: busy seconds of a replica, not seconds of a request.
An engine that computes prompts together takes each longer, yet serves more. In a pool that is never idle busy seconds a
request are exactly the reciprocal of its throughput.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from phasewise_operator.scaling.policy.erlang import servers_for, servers_to_keep_up
from phasewise_operator.scaling.policy.format import counted, figure, percent, seconds
from phasewise_operator.scaling.policy.load import ENOUGH_REQUESTS, Load
from phasewise_operator.scaling.policy.sizing import SLACK, Need, cap_step
from phasewise_operator.scaling.types import PoolState, SloTargets, TtftParts

PREFILL_LOAD = "PrefillLoad"
BACKLOG = "Backlog"
PROMPT_TOO_LONG = "PromptTooLong"

CLEAR_SECONDS = 30.0
"""A backlog is worked off within this time: one SLO window, so that it spoils no second one."""
QUEUE_BUILDS = 2.0
"""Prompts waiting for each replica from which on a queue is more than a lump: with use under STABLE_USE it is rare."""
LEAST_TAIL = 0.005
"""Attainment 100 % would ask for no waiting at all, ever: one in 200 is as good as can be measured in a window."""

COST_REQUESTS = 10.0
"""Requests that the cost is averaged over where few come: enough to calm single long prompts, soon overruled."""
SHARE_REQUESTS = 50.0
"""The same for the share of requests that go to prefill: it must not fall because prefill lags for a moment."""
ROUTER_SECONDS = 0.01
"""What router, proxy and network add to TTFT: 5 to 10 ms."""
AFTER_SECONDS = 30.0
"""Time constant for what follows prefill: the window that it is measured over."""


@dataclass(frozen=True)
class Prompts:
    """What was learned of prefill requests: sums over the last of them."""

    busy: float = 0.0
    """Busy seconds of replicas..."""
    requests: float = 0.0
    """...and the requests that they served."""
    taken: float = 0.0
    """Prefill requests..."""
    served: float = 0.0
    """...and the decode requests beside them: a request may go to decode at once."""
    after: float | None = None
    """Seconds from the end of prefill to the first token where decode is not congested."""
    most: float | None = None
    """Seconds that prompts were in the engine's batch, on average: their cost cannot be more."""

    @property
    def seconds(self) -> float | None:
        """Busy seconds of a replica a request. Requests that clients gave up kept it busy, too, and are not counted."""
        if self.requests <= 0 or self.busy <= 0:
            return None
        return self.busy / self.requests if self.most is None else min(self.most, self.busy / self.requests)

    @property
    def share(self) -> float:
        """Requests that go to prefill; all of them while too few were seen."""
        return min(1.0, self.taken / self.served) if self.served >= ENOUGH_REQUESTS else 1.0

    @property
    def thin(self) -> bool:
        """Too few requests were seen for large steps."""
        return self.requests < ENOUGH_REQUESTS


def learn(old: Prompts, load: Load, parts: TtftParts, elapsed: float, waiting: bool) -> Prompts:
    """With what the last `elapsed` seconds have shown; `waiting`: prompts wait behind others in prefill."""
    fresh = min(1.0, elapsed / load.window)
    busy, requests = _bounded(old.busy, old.requests, COST_REQUESTS)
    new = replace(
        old, busy=busy + load.prefill.busy * load.window * fresh, requests=requests + load.prefill.requests * fresh
    )
    if not waiting:
        taken, served = _bounded(old.taken, old.served, SHARE_REQUESTS)
        new = replace(new, taken=taken + load.prefill.requests * fresh, served=served + load.decode.requests * fresh)
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


def waiting(load: Load, ready: int, queue_counts: bool) -> float:
    """Requests that wait behind others: those without prefill done, less one in service for each replica."""
    if not ready:
        return 0.0
    return max(0.0, load.awaiting.get("prefill", 0.0) + (load.queued if queue_counts else 0.0) - ready)


def judgeable(load: Load, ready: int, behind: float) -> bool:
    """May what is measured now be laid to the size of the pool?

    Not in a true backlog: the model sizes for it, and what it holds up stays late until it is worked off. Not while
    some replica has little to do beside one with a queue.
    """
    return behind <= ready and not load.prefill.uneven


def need(load: Load, targets: SloTargets, pool: PoolState, *, arrivals: float, prompts: Prompts, behind: float) -> Need:
    """The size for `arrivals` requests per second, and for the backlog `behind`."""
    if load.quiet:
        return Need(0, 0, 0.0, PREFILL_LOAD, "No traffic")
    cost = prompts.seconds
    if cost is None:
        return Need(1, 1, 0.0, PREFILL_LOAD, "No prompt has been computed yet: its cost is not known")
    rate = arrivals * prompts.share
    wait = targets.ttft - cost - (prompts.after or 0.0)
    tail = max((1 - targets.attainment) / 2, LEAST_TAIL)
    customers = max(1, round(load.arrivals * load.window), round(load.queued + load.awaiting.get("prefill", 0.0)))

    def replicas(factor: float, backlog: float) -> int:
        offered = (rate * cost + backlog) * factor
        if wait > 0:
            needed = servers_for(offered, cost, wait, tail)
        else:
            # Only a queue that builds up shows that the pool cannot keep up: the target is out of reach anyway.
            needed = servers_to_keep_up(offered)
            needed = needed if factor > 1 or behind > QUEUE_BUILDS * pool.ready else min(needed, pool.desired)
        # Never more servers than customers: one long prompt alone is no rate.
        needed = max(1, min(needed, customers))
        return cap_step(needed, pool) if prompts.thin else needed

    # Prompts in a replica's queue stay there: more replicas only stand in for those that are kept busy by them.
    backlog = min(behind * cost / CLEAR_SECONDS, pool.ready + load.queued * cost / CLEAR_SECONDS)
    plain, full = replicas(1.0, 0.0), replicas(1.0, backlog)
    demand = f"{figure(rate)} requests/s x {seconds(cost)} a prompt"
    reason, message = _why(demand, full, wait, tail, targets, cost)
    if full > plain and wait > 0:
        reason = BACKLOG
        message = f"{figure(behind)} prompts wait behind others: {demand} and these need {counted(full, 'replica')}"
    return Need(full, max(full, replicas(SLACK, backlog)), rate * cost, reason, message, curable=wait > 0)


def _why(demand: str, needed: int, wait: float, tail: float, targets: SloTargets, cost: float) -> tuple[str, str]:
    replicas = counted(needed, "replica")
    if wait > 0:
        return PREFILL_LOAD, f"{demand} need {replicas} to keep waiting under {seconds(wait)} for {percent(1 - tail)}"
    return PROMPT_TOO_LONG, (
        f"A prompt without others takes {seconds(cost)}, {seconds(targets.ttft - wait)} to the first token; the TTFT "
        f"target is {seconds(targets.ttft)}, which no number of replicas meets: {replicas} only keep up. "
        "Shorter prompts, a larger ttft, a faster accelerator or tensor parallelism would help"
    )
