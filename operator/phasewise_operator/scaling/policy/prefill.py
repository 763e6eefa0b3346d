"""How many prefill replicas the load needs: a replica is a server, prompts are its customers. Pure.

Imports `load`, `memory`, `sizing`, `staffing`, `state` and `wording` only.
"""

from __future__ import annotations

from phasewise_operator.scaling.policy.erlang import servers_for, servers_to_keep_up
from phasewise_operator.scaling.policy.format import counted, figure, percent, seconds
from phasewise_operator.scaling.policy.load import Load
from phasewise_operator.scaling.policy.memory import Prompts
from phasewise_operator.scaling.policy.sizing import SLACK, Need, carefully
from phasewise_operator.scaling.types import PoolState, SloTargets

PREFILL_LOAD = "PrefillLoad"
BACKLOG = "Backlog"
PROMPT_TOO_LONG = "PromptTooLong"

CLEAR_SECONDS = 30.0
"""A backlog is worked off within this time: one SLO window, so that it spoils no second one."""
QUEUE_BUILDS = 2.0
"""Prompts waiting for each replica from which on a queue is more than a lump: with use under STABLE_USE it is rare."""
LEAST_TAIL = 0.005
"""Attainment 100 % would ask for no waiting at all, ever: one in 200 is as good as can be measured in a window."""


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


def need(load: Load, targets: SloTargets, arrivals: float, prompts: Prompts, pool: PoolState, behind: float) -> Need:
    """The size for `arrivals` requests per second, and for the backlog `behind`."""
    if load.quiet:
        return Need(0, 0, 0.0, PREFILL_LOAD, "No traffic")
    cost = prompts.seconds
    if cost is None:
        return Need(1, 1, 0.0, PREFILL_LOAD, "No prompt has been computed yet: its cost is not known")
    rate = arrivals * prompts.share
    wait = targets.ttft - cost - (prompts.after or 0.0)
    tail = max((1 - targets.attainment) / 2, LEAST_TAIL)
    seen = max(1, round(load.arrivals * load.window), round(load.queued + load.awaiting.get("prefill", 0.0)))

    def size(factor: float, backlog: float) -> int:
        offered = (rate * cost + backlog) * factor
        if wait > 0:
            enough = servers_for(offered, cost, wait, tail)
        else:
            # Only a queue that builds up shows that the pool cannot keep up: the target is out of reach anyway.
            enough = servers_to_keep_up(offered)
            enough = enough if factor > 1 or behind > QUEUE_BUILDS * pool.ready else min(enough, pool.desired)
        # Never more servers than customers: one long prompt alone is no rate.
        enough = max(1, min(enough, seen))
        return carefully(enough, pool) if prompts.thin else enough

    # Prompts in a replica's queue stay there: more replicas only stand in for those that are kept busy by them.
    backlog = min(behind * cost / CLEAR_SECONDS, pool.ready + load.queued * cost / CLEAR_SECONDS)
    plain, full = size(1.0, 0.0), size(1.0, backlog)
    demand = f"{figure(rate)} requests/s x {seconds(cost)} a prompt"
    reason, message = _why(demand, full, wait, tail, targets, cost)
    if full > plain and wait > 0:
        reason = BACKLOG
        message = f"{figure(behind)} prompts wait behind others: {demand} and these need {counted(full, 'replica')}"
    return Need(full, max(full, size(SLACK, backlog)), rate * cost, reason, message, curable=wait > 0)


def _why(demand: str, size: int, wait: float, tail: float, targets: SloTargets, cost: float) -> tuple[str, str]:
    replicas = counted(size, "replica")
    if wait > 0:
        return PREFILL_LOAD, f"{demand} need {replicas} to keep waiting under {seconds(wait)} for {percent(1 - tail)}"
    return PROMPT_TOO_LONG, (
        f"A prompt takes {seconds(cost)} alone, {seconds(targets.ttft - wait)} to the first token; the TTFT target "
        f"is {seconds(targets.ttft)}, which no number of replicas meets: {replicas} only keep up. Shorter prompts, "
        "a larger ttft, a faster accelerator or tensor parallelism would help"
    )
