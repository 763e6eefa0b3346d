"""Which pods can serve a request together, and how much they can take beside the others. Pure.

A group is the decode pods of one KV fingerprint, with the prefill pods whose KV they can read. Revisions with different
fingerprints, and pods with and without a prefill pool, are different groups; so are, of one fingerprint, decode pods
that get KV from a prefill pod and those that get it from none.

Capacity is counted in GPUs (in pods, on CPU). A pod without a prefill pool does all the work of its requests, so it
counts as it is. Of prefill and decode pods the scarcer ones decide. How many of each belong together is what the
operator has made it: the most of either role that any group has, whether ready or not. A group with a third of those
prefill pods ready has a third of the capacity of both roles, however many decode pods it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from phasewise_runtime.contract import DECODE, PREFILL
from phasewise_runtime.router.pods import Candidate, Pod

Sizes = Mapping[tuple[str, str], int]
"""GPUs, or pods on CPU, by role and fingerprint: of all pods that are not being deleted, ready or not."""


@dataclass(frozen=True, slots=True)
class Group:
    """Decode pods, and the prefill pods of the same fingerprint."""

    prefills: Sequence[Candidate]
    decodes: Sequence[Candidate]
    capacity: float

    @property
    def load(self) -> int:
        return sum(d.load for d in self.decodes)

    @property
    def complete(self) -> bool:
        """Its pods do what they were made for. Others, whose prefill pods are missing, can serve all the same."""
        return bool(self.prefills) or all(d.pod.aggregated for d in self.decodes)


def sizes_of(pods: Iterable[Pod]) -> Sizes:
    sizes: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        if not pod.terminating:
            sizes[pod.role, pod.fingerprint] += pod.size
    return sizes


def groups(prefills: Sequence[Candidate], decodes: Sequence[Candidate], known: Sizes) -> list[Group]:
    """The groups that take part, given the pods that may be chosen; none only where there is no decode pod.

    Those that miss their prefill pods take part only where they are more than all that is complete: a single new pair
    must not get the requests of ten old pods.
    """
    pools = list(_pools(prefills, decodes))
    largest = _largest(pools, known)
    found = [Group(*pool, _capacity(*pool, largest)) for pool in pools]
    complete = [g for g in found if g.complete]
    missing = sum(g.capacity for g in found if not g.complete)
    return complete if sum(g.capacity for g in complete) >= missing else found


_Pool = tuple[Sequence[Candidate], Sequence[Candidate]]


def _pools(prefills: Sequence[Candidate], decodes: Sequence[Candidate]) -> Iterator[_Pool]:
    peers = _by_fingerprint(prefills)
    for fingerprint, pods in _by_fingerprint(decodes).items():
        found = peers.get(fingerprint, [])
        uids = {p.pod.uid for p in found}
        paired, unpaired = list[Candidate](), list[Candidate]()
        for pod in pods:
            (paired if found and (pod.peers is None or not uids.isdisjoint(pod.peers)) else unpaired).append(pod)
        if paired:
            yield found, paired
        if unpaired:
            yield [], unpaired


def _largest(pools: Iterable[_Pool], known: Sizes) -> tuple[int, int]:
    """The most prefill and the most decode pods of any fingerprint that has both; 0 where none has."""
    both = [
        (max(_size(ps), known.get((PREFILL, fp), 0)), max(_size(ds), known.get((DECODE, fp), 0)))
        for ps, ds in pools
        if ps
        for fp in (ds[0].pod.fingerprint,)
    ]
    return max((p for p, _ in both), default=0), max((d for _, d in both), default=0)


def _capacity(prefills: Sequence[Candidate], decodes: Sequence[Candidate], largest: tuple[int, int]) -> float:
    if not prefills:
        return _size(decodes)
    return min(_size(prefills) / largest[0], _size(decodes) / largest[1]) * sum(largest)


def _by_fingerprint(candidates: Sequence[Candidate]) -> dict[str, list[Candidate]]:
    found: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        found.setdefault(candidate.pod.fingerprint, []).append(candidate)
    return found


def _size(candidates: Sequence[Candidate]) -> int:
    return sum(c.pod.size for c in candidates)
