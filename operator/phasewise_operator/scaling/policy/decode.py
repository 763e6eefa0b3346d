"""How many decode replicas the load needs, by streams within the ITL target, KV cache and prompt admission. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phasewise_operator.scaling.policy.format import counted, figure, percent, seconds
from phasewise_operator.scaling.policy.itl_law import ENOUGH_TOKENS, HEADROOM, ItlLaw
from phasewise_operator.scaling.policy.load import ALONE, ENOUGH_REQUESTS, KV_FULL, Load
from phasewise_operator.scaling.policy.sizing import SLACK, Need, cap_step
from phasewise_operator.scaling.types import PoolSignals, PoolState, SloTargets

DECODE_LOAD = "DecodeLoad"
KV_CACHE_FULL = "KvCacheFull"
DECODE_ADMISSION = "DecodeAdmission"
ITL_UNATTAINABLE = "ItlUnattainable"

FILL = 0.80
"""Use of KV cache or batch that a pool is sized to where it lacks them: streams come in lumps."""
CAPACITY_SECONDS = 1800.0
"""How long the capacity of a pod is remembered: it changes with the length of streams."""
ADMISSION_SHARE = 0.25
"""Share of the TTFT target that admission may take before it counts: any request is "blocked" for a step."""
WORSE_AT_MOST = 1.5
"""Where the ITL target is out of reach ITL is kept within this multiple of what a stream alone has."""
THROUGHOUT = 0.9
"""Share of a load window with streams from which on their mean is what they were; below it some came or went."""
LEAST_BUSY = 0.02
"""Share of a load window with streams below which their number is noise."""
FEW = 3.0
"""With fewer streams a replica, a small error in the ITL of a single stream changes the size by replicas."""
WIDER = 2.0
"""A pool is not made so small in one go that pods would hold more than this multiple of the streams that some pod has
shown, and of what they hold now."""
LENGTH_REQUESTS = 50.0
"""Requests that the length of outputs is averaged over: lengths scatter more than prompts, and streams that have not
ended blur them."""


@dataclass(frozen=True)
class Outputs:
    """What was learned of decode requests: sums over the last of them."""

    tokens: float = 0.0
    requests: float = 0.0

    @property
    def length(self) -> float | None:
        """Output tokens a request."""
        return self.tokens / self.requests if self.requests >= ENOUGH_REQUESTS else None


@dataclass(frozen=True)
class StreamCapacity:
    """Streams that a decode pod lets in, seen when others had to wait: its batch or its KV cache sets the limit."""

    streams: float
    at: float


def learn(law: ItlLaw, pool: PoolSignals | None, elapsed: float, window: float) -> ItlLaw:
    """The law with each pod's last load window; windows overlap, so each counts by what is new in it."""
    law = law.forget(elapsed)
    for _, pod in sorted(pool.pods.items()) if pool else ():
        busy = pod.busy or 0.0
        if pod.itl is not None and pod.concurrency is not None and busy >= LEAST_BUSY:
            # Of the time with streams, which the gaps are of. A request that waits for admission has no gaps yet.
            mean = pod.concurrency / busy
            streams = mean if not pod.blocked or pod.running is None else min(mean, pod.running)
            weight = min(1.0, elapsed / window) * min(1.0, pod.tokens / ENOUGH_TOKENS)
            law = law.learn(max(1.0, streams), pod.itl, weight, busy_throughout=busy >= THROUGHOUT)
    return law


def counted_blocked(load: Load, before: float, targets: SloTargets) -> float:
    """Requests at decode admission that are more than passers-by: some are overdue, or many were there in two rounds.

    By Little's law those blocked wait blocked / arrivals on average.
    """
    if load.overdue.get("decode", 0.0) > 0:
        return load.decode.blocked
    lasting = min(before, load.decode.blocked)
    return lasting if lasting > ADMISSION_SHARE * targets.ttft * load.arrivals else 0.0


def full(load: Load, blocked: float) -> bool:
    """Decode pods are at their limits."""
    return blocked > 0 or (load.decode.kv or 0.0) > KV_FULL


def need(
    load: Load,
    targets: SloTargets,
    pool: PoolState,
    *,
    arrivals: float,
    outputs: Outputs,
    law: ItlLaw,
    capacity: StreamCapacity | None,
    blocked: float,
) -> Need:
    """The largest of the three sizes, each with its reason."""
    if load.quiet:
        return Need(0, 0, 0.0, DECODE_LOAD, "No traffic")
    itl = _itl_to_size_for(load, targets, law)
    within, shown = law.capacity(itl), _shown(load, targets, pool)
    holds = min(max(within, shown), max(1.0, FILL * capacity.streams) if capacity else math.inf)
    pace = min(itl, law.at(holds)) if law.has_samples else HEADROOM * targets.itl
    if shown > within and load.decode.slowest:
        pace = load.decode.slowest
    lasting = arrivals * (outputs.length or 0.0) * pace
    number = streams(load, pace, lasting)
    if itl > targets.itl:
        by_itl = _unattainable(number, holds, targets, law, pool)
    else:
        by_itl = _by_itl(number, holds, holds < max(within, shown), targets, law, load, pool)
    # The first of the largest names the reason: what is short now before what will be.
    sizes = [n for n in (_by_admission(load, pool, blocked, lasting), _by_kv(load, pool), by_itl) if n]
    largest = max(sizes, key=lambda n: n.replicas)
    slack = max(n.with_slack for n in sizes)
    return Need(largest.replicas, slack, by_itl.load, largest.reason, largest.message, by_itl.curable)


def streams(load: Load, pace: float, lasting: float) -> float:
    """Streams that there would be if pods ran at the `pace` they are sized for; by Little's law tokens/s x ITL.

    `lasting`: those that arrivals keep up in the long run; 0 where the length of outputs is not known yet.

    | pods are | streams in flight are                      | so capacity is made for                             |
    |----------|--------------------------------------------|-----------------------------------------------------|
    | quicker  | fewer than there would be with fewer pods  | tokens/s x pace                                     |
    | slower   | more, since each stays longer; tokens/s is | those in flight, but no more than arrivals keep up  |
    |          | what pods can do, not what is needed       |                                                     |
    """
    decode = load.decode
    number = max(0.0, decode.concurrency - decode.blocked)
    at_pace = decode.tokens / load.window * pace
    # Prompts in prefill, and requests that wait for admission, are streams soon: as many as arrivals keep up.
    coming = min(number + decode.blocked + load.awaiting.get("prefill", 0.0), lasting)
    if decode.slowest is None or decode.slowest <= pace:
        return max(number if decode.slowest is None else 0.0, at_pace, coming)
    return max(coming, min(number, max(at_pace, lasting))) if lasting else number


def learn_capacity(old: StreamCapacity | None, load: Load, blocked: float, now: float) -> StreamCapacity | None:
    """What a pod lets in, from pods where requests wait for admission; more where a pod is seen to hold more."""
    if old and now - old.at > CAPACITY_SECONDS:
        old = None
    if blocked > 0 and load.decode.capacity:
        return StreamCapacity(max(load.decode.capacity, load.decode.fullest), now)
    if old and load.decode.fullest > old.streams:
        return StreamCapacity(load.decode.fullest, old.at)
    return old


def learn_outputs(outputs: Outputs, load: Load, targets: SloTargets, elapsed: float) -> Outputs:
    """With the tokens and requests that are new in the load window.

    Not while pods are slow: streams pile up then, and their tokens come long before their ends.
    """
    if load.decode.slowest is None or load.decode.slowest > HEADROOM * targets.itl:
        return outputs
    fresh = min(1.0, elapsed / load.window)
    keep = min(1.0, LENGTH_REQUESTS / outputs.requests) if outputs.requests > 0 else 1.0
    return Outputs(
        outputs.tokens * keep + load.decode.tokens * fresh, outputs.requests * keep + load.decode.requests * fresh
    )


def _itl_to_size_for(load: Load, targets: SloTargets, law: ItlLaw) -> float:
    """The ITL that pods are sized for, seconds: the target, or what can be had where no pod shows that it is met."""
    slowest = load.decode.slowest
    if not law.has_samples or law.alone <= targets.itl or not law.knows_alone or (slowest and slowest <= targets.itl):
        return targets.itl
    # So that what a replica is filled to, within its headroom, is the bound.
    return law.alone * (1 + (WORSE_AT_MOST - 1) / HEADROOM)


def _is_itl_met(load: Load, targets: SloTargets) -> bool:
    """The slowest pod is clearly below the target."""
    return load.decode.slowest is not None and load.decode.slowest <= HEADROOM * targets.itl


def _shown(load: Load, targets: SloTargets, pool: PoolState) -> float:
    """Streams that pods hold within the target at this moment, whatever was learned before; 0: that is not known."""
    if not pool.ready or not _is_itl_met(load, targets):
        return 0.0
    return max(0.0, load.decode.concurrency - load.decode.blocked) / pool.ready


def _by_itl(
    number: float, holds: float, is_full: bool, targets: SloTargets, law: ItlLaw, load: Load, pool: PoolState
) -> Need:
    if not law.has_samples:
        return Need(1, 1, number, DECODE_LOAD, "No stream has been decoded yet: what a replica holds is not known")
    guessed = law.thin or not law.knows_alone or holds < FEW
    # No guess makes a replica while ITL is within its target, nor where streams that are slow hardly share a pod.
    unfounded = _is_itl_met(load, targets) or load.decode.batch < ALONE

    def size(factor: float, holds: float) -> int:
        needed = max(1, math.ceil(number * factor / holds))
        if not guessed:
            return needed
        return min(needed, pool.desired) if unfounded else cap_step(needed, pool)

    each = f"{figure(holds)} a replica" if math.isfinite(holds) else "any number a replica"
    limit = "(its capacity)" if is_full else f"within {seconds(targets.itl)} ITL"
    needed = size(1.0, holds)
    message = f"{figure(number)} streams at {each} {limit} need {counted(needed, 'replica')}"
    # At half of the replicas a pod has double the streams: fewer still are left to pods that have shown as much.
    unseen = min(size(SLACK, min(holds, max(1.0, WIDER * law.widest))), math.ceil(pool.desired / WIDER))
    return Need(needed, max(needed, size(SLACK, holds), unseen), number, DECODE_LOAD, message)


def _unattainable(number: float, holds: float, targets: SloTargets, law: ItlLaw, pool: PoolState) -> Need:
    message = (
        f"A single stream has an ITL of {seconds(law.alone)}; the target is {seconds(targets.itl)}, which no number "
        f"of replicas meets: they only keep it under {seconds(WORSE_AT_MOST * law.alone)}. A larger itl, a faster "
        "accelerator or tensor parallelism would help"
    )
    needed = cap_step(max(1, math.ceil(number / holds)), pool)
    keep = max(needed, math.ceil(number * SLACK / holds))
    return Need(needed, keep, number, ITL_UNATTAINABLE, message, curable=False)


def _by_kv(load: Load, pool: PoolState) -> Need | None:
    if load.decode.kv is None or not pool.ready:
        return None
    used = pool.ready * load.decode.kv
    size = math.ceil(used / FILL) if load.decode.kv > KV_FULL else 0
    use = percent(round(load.decode.kv, 2))
    message = f"The KV cache is {use} full: {counted(size, 'replica')} would be at {percent(FILL)}"
    return Need(size, max(size, math.ceil(used * SLACK / FILL)), 0.0, KV_CACHE_FULL, message)


def _by_admission(load: Load, pool: PoolState, blocked: float, lasting: float) -> Need | None:
    """For the requests that wait for admission and find none in other pods. Those in a pod's queue stay there."""
    capacity = max(1.0, load.decode.capacity or 1.0)
    excess = blocked - load.decode.free
    if excess <= 0 or not pool.ready:
        return None
    size = pool.ready + math.ceil(excess / capacity)
    if lasting:
        # Requests that pile up while replicas start are no lasting load; one replica more clears them.
        size = min(size, max(pool.ready, math.ceil(lasting / (FILL * capacity))) + 1)
    message = (
        f"{figure(blocked)} requests wait for decode admission, where a replica runs {figure(capacity)}: TTFT suffers; "
        f"{counted(size, 'replica')} would hold them"
    )
    return Need(size, size, 0.0, DECODE_ADMISSION, message)
