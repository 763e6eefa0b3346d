"""Which pods serve a request. Pure: values in, a choice and its reason out.

Rules, in order:
1. Only usable pods that are not ejected; pods this request has failed on least often come first.
2. Pods that are new, of which nothing is proved yet, take requests only where no others can.
3. Prefill and decode are paired only where their KV fingerprints are equal and KV is known to flow between the two.
   Pods of different fingerprints, as in a rollout, and pods with and without a prefill pool share the requests by their
   capacity (`capacity`, `split`).
4. Where the decode pod has no prefill pod that can take the request, the request is decode-only: its decode pod does
   both phases, and the reason says why.
5. Among equal pods the least loaded one, in relation to its GPUs.
Ties are broken by `round_robin`, a count that the caller increments, so that equal pods share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from phasewise_runtime.router.capacity import Sizes, groups
from phasewise_runtime.router.pods import Candidate, Pod
from phasewise_runtime.router.split import Share, next_share

PAIR = "pair"
NOT_DISAGGREGATED = "not_disaggregated"
NO_PREFILL_POD = "no_prefill_pod"
PREFILL_EJECTED = "prefill_ejected"
PREFILL_FAILED = "prefill_failed"
KV_NOT_PROVED = "kv_not_proved"
"""It is not known yet whether KV flows between the decode pod and the prefill pods that could take the request."""
KV_FAILED = "kv_failed"
"""It does not."""


ROOT_2: Final = 2**0.5
ROOT_3: Final = 3**0.5
"""Their multiples, modulo 1, fill the unit interval evenly, and independently of each other's and of split.GOLDEN's: a
prefill pod whose turn it is must not always meet the same decode pod, which may not get KV of it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes; `reason` is PAIR or why it is decode-only."""

    decode: Pod
    prefill: Pod | None
    reason: str


def choose(
    prefills: Sequence[Candidate],
    decodes: Sequence[Candidate],
    *,
    known: Sizes | None = None,
    decode_only: str | None = None,
    round_robin: int = 0,
) -> Choice | None:
    """Choose a pair, or only a decode pod; `decode_only` is the reason why the request must not be prefilled elsewhere.

    None: no decode pod can take it now.
    """
    fresh = _least_tried(decodes)
    if not fresh:
        return None
    if decode_only is not None:
        return Choice(_least_loaded(fresh, round_robin).pod, None, decode_only)
    found = groups([p for p in prefills if p.proved and not p.ejected and not p.tried], fresh, known or {})
    group, shared = found[next_share([Share(g.capacity, g.load) for g in found], round_robin)], len(found) > 1
    decode = _least_loaded(group.decodes, round_robin, ROOT_3 if shared else None)
    peers = [p for p in group.prefills if decode.takes_kv_of(p.pod)]
    if not peers:
        return Choice(decode.pod, None, _decode_only_reason(prefills, decode))
    return Choice(decode.pod, _least_loaded(peers, round_robin, ROOT_2).pod, PAIR)


def choose_decode(decodes: Sequence[Candidate], prefill: Pod, *, round_robin: int = 0) -> Pod | None:
    """Choose a decode pod that gets KV of `prefill` and that this request has not failed on."""
    fit = [d for d in decodes if d.takes_kv_of(prefill) and not d.ejected and not d.tried]
    return _least_loaded(fit, round_robin).pod if fit else None


def _least_tried(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that take requests and that this request has failed on least often; of these the proved ones. Where these
    are less than half, as after a start of the router, new ones help them: a few could not serve what comes."""
    open_ = [c for c in candidates if not c.ejected]
    fewest = min((c.tried for c in open_), default=0)
    least = [c for c in open_ if c.tried == fewest]
    proved = [c for c in least if c.proved]
    return proved if 2 * len(proved) >= len(least) else least


def _least_loaded(candidates: Sequence[Candidate], round_robin: int, root: float | None = None) -> Candidate:
    """`root`: the same count has chosen the group or the decode pod, of which a plain remainder is not independent."""
    loads = [c.load / c.pod.size for c in candidates]
    lowest = min(loads)
    equals = [c for c, load in zip(candidates, loads, strict=True) if load == lowest]
    equals.sort(key=lambda c: c.pod.name)
    rounds = range(max(c.pod.size for c in equals))
    turns = [c for n in rounds for c in equals if n < c.pod.size]
    return turns[round_robin % len(turns) if root is None else int(round_robin * root % 1 * len(turns))]


def _decode_only_reason(prefills: Sequence[Candidate], decode: Candidate) -> str:
    peers = [p for p in prefills if p.pod.fingerprint == decode.pod.fingerprint]
    if decode.pod.aggregated:
        return NOT_DISAGGREGATED
    if not peers:
        return NO_PREFILL_POD
    available = [p for p in peers if not p.ejected and not p.tried]
    if available:
        return KV_FAILED if any(p.pod.uid in decode.failed_peers for p in available) else KV_NOT_PROVED
    return PREFILL_FAILED if any(p.tried for p in peers) else PREFILL_EJECTED
