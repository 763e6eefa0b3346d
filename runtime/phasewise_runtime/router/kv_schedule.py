"""Which pairs of pods a canary tries next. Pure: `now` is given.

In this order: paths on which requests wait or that otherwise look bad; pods that are new, each with one peer, of which
one that is proved comes first; paths that failed, when their back-off is over; and at a bounded rate all pairs that
were not tried yet, so that pods come to share the work of all their peers.

A decode pod takes one canary at a time: its connector's counters are read before and after. So does a prefill pod that
has no path yet: a dead one, at which each canary lasts until its timeout, must not keep the others from being tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phasewise_runtime.contract import DECODE, PREFILL
from phasewise_runtime.router.kv_paths import backoff
from phasewise_runtime.router.kv_registry import KvPod, KvRegistry, Pair
from phasewise_runtime.router.pods import Pod

AT_ONCE = 8
BACKGROUND_SECONDS = 0.1
"""Between canaries of pairs whose pods have other paths: 100 prefill and 100 decode pods take a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class Canary:
    decode: Pod
    prefill: Pod | None
    """None: the decode pod alone."""

    @property
    def pods(self) -> tuple[Pod, ...]:
        return (self.decode,) if self.prefill is None else (self.decode, self.prefill)


class Schedule:
    def __init__(self, kv: KvRegistry) -> None:
        self._kv = kv
        self._under_way: set[Canary] = set()
        self._running: Counter[str] = Counter()
        """Canaries under way, by the uid of each of their pods."""
        self._background_at = 0.0

    def begin(self, now: float) -> Canary | None:
        """The next canary, which is under way until `end`; None where none is due."""
        if len(self._under_way) >= AT_ONCE:
            return None
        canary = next(self._due(now), None)
        if canary is not None:
            self._under_way.add(canary)
            self._running.update(pod.uid for pod in canary.pods)
        return canary

    def end(self, canary: Canary) -> None:
        self._under_way.discard(canary)
        self._running.subtract(pod.uid for pod in canary.pods)
        self._running = +self._running

    # --- inside ----------------------------------------------------------------------------------------------
    def _due(self, now: float) -> Iterator[Canary]:
        yield from self._again(self._kv.suspected, now)
        yield from self._new(now)
        yield from self._again(self._kv.not_open, now)
        if now - self._background_at >= BACKGROUND_SECONDS:
            for canary in self._untried():
                self._background_at = now
                yield canary

    def _again(self, pairs: Iterable[Pair], now: float) -> Iterator[Canary]:
        for pair in pairs:
            prefill, decode = (self._kv.pods[uid] for uid in pair)
            if now >= self._kv.paths[pair].next_try and self._free(prefill) and self._free(decode):
                yield Canary(decode.pod, prefill.pod)

    def _new(self, now: float) -> Iterator[Canary]:
        for state in self._kv.pods.values():
            if state.open or not self._free(state):
                continue
            if (peer := self._peer(state)) is not None:
                yield _canary(state, peer)
            elif state.pod.role == DECODE and not state.warm and now >= _next_try(state):
                # Its peers are not ready, or taken: one that hangs may be for long.
                yield Canary(state.pod, None)

    def _untried(self) -> Iterator[Canary]:
        """Of the decode pods with few paths first."""
        decodes = [s for s in self._kv.pods.values() if s.pod.role == DECODE and self._free(s)]
        for decode in sorted(decodes, key=lambda s: len(s.open)):
            if (prefill := self._peer(decode, spread=True)) is not None:
                yield _canary(decode, prefill)

    def _peer(self, state: KvPod, *, spread: bool = False) -> KvPod | None:
        """A pod with which `state` was not tried: one that is proved, unless they are to share the work."""
        untried = (self._kv.pods[uid] for uid in self._kv.peers(state.pod) - state.tried)
        free = [peer for peer in untried if self._free(peer)]

        def rank(peer: KvPod) -> tuple[bool, int, int, str]:
            proved = bool(peer.open) or spread
            return not proved, self._running[peer.pod.uid], len(peer.open), peer.pod.name

        return min(free, key=rank, default=None)

    def _free(self, state: KvPod) -> bool:
        several = state.pod.role == PREFILL and bool(state.open)
        return state.pod.usable and (several or not self._running[state.pod.uid])


def _canary(state: KvPod, peer: KvPod) -> Canary:
    decode, prefill = (state, peer) if state.pod.role == DECODE else (peer, state)
    return Canary(decode.pod, prefill.pod)


def _next_try(state: KvPod) -> float:
    return state.tried_at + backoff(state.tries) if state.tries else 0.0
