"""Which pods serve a request. Pure: values in, a choice and its reason out.

Rules, in order:
1. Only usable pods that are not ejected; pods this request has failed on least often come first.
2. Prefill and decode are paired only where their KV fingerprints are equal, the least loaded pair first.
3. Where no prefill pod is left for any of those decode pods, the request is decode-only: its decode pod does both
   phases, and the reason says why.
Ties are broken by `round_robin`, a count that the caller increments, so that equal pods share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise_runtime.router.pods import Pod

PAIR = "pair"
NO_PREFILL_POD = "no_prefill_pod"
PREFILL_EJECTED = "prefill_ejected"
PREFILL_FAILED = "prefill_failed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A usable pod as one request sees it."""

    pod: Pod
    load: int = 0
    """Requests this router has placed there."""
    ejected: bool = False
    tried: int = 0
    """Times this request has failed there."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes; `reason` is PAIR or why it is decode-only."""

    decode: Pod
    prefill: Pod | None
    reason: str


def choose(
    prefills: Sequence[Candidate], decodes: Sequence[Candidate], *, decode_only: str | None = None, round_robin: int = 0
) -> Choice | None:
    """Choose a pair, or only a decode pod; `decode_only` is the reason why the request must not be prefilled elsewhere.

    None: no decode pod can take it now.
    """
    fresh = _least_tried(decodes)
    if not fresh:
        return None
    if decode_only is not None:
        return Choice(_least_loaded(fresh, round_robin).pod, None, decode_only)
    open_prefills = [p for p in prefills if not p.ejected and not p.tried]
    fingerprints = {p.pod.fingerprint for p in open_prefills}
    paired = [d for d in fresh if d.pod.fingerprint in fingerprints]
    if not paired:
        return Choice(_least_loaded(fresh, round_robin).pod, None, _decode_only_reason(prefills, fresh))
    decode = _least_loaded(paired, round_robin).pod
    peers = [p for p in open_prefills if p.pod.fingerprint == decode.fingerprint]
    return Choice(decode, _least_loaded(peers, round_robin).pod, PAIR)


def choose_decode(decodes: Sequence[Candidate], fingerprint: str, *, round_robin: int = 0) -> Pod | None:
    """Choose a decode pod that can read KV of `fingerprint` and that this request has not failed on."""
    fit = [d for d in decodes if d.pod.fingerprint == fingerprint and not d.ejected and not d.tried]
    return _least_loaded(fit, round_robin).pod if fit else None


def _least_tried(candidates: Sequence[Candidate]) -> list[Candidate]:
    open_ = [c for c in candidates if not c.ejected]
    fewest = min((c.tried for c in open_), default=0)
    return [c for c in open_ if c.tried == fewest]


def _least_loaded(candidates: Sequence[Candidate], round_robin: int) -> Candidate:
    lowest = min(c.load for c in candidates)
    equals = sorted((c for c in candidates if c.load == lowest), key=lambda c: c.pod.name)
    return equals[round_robin % len(equals)]


def _decode_only_reason(prefills: Sequence[Candidate], decodes: Sequence[Candidate]) -> str:
    readable = {d.pod.fingerprint for d in decodes}
    peers = [p for p in prefills if p.pod.fingerprint in readable]
    if not peers:
        return NO_PREFILL_POD
    return PREFILL_FAILED if any(p.tried for p in peers) else PREFILL_EJECTED
