"""Between which pods KV flows, as far as this router knows, and which requests wait for it. Pure: `now` is given.

Fed by discovery through the pod registry (pods), by canary (proofs) and by pd_request (successes, failures, waits).
Read by policy through the pod registry (Candidate), by kv_schedule for what to try next, and by the metrics. Only what
is known of a pair is kept: 100 prefill and 100 decode pods are 10,000 pairs.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from phasewise_runtime.contract import DECODE, ENGINE_ROLES, KV_PATH_STATES, PREFILL
from phasewise_runtime.router import kv_paths
from phasewise_runtime.router.kv_evidence import Result, Transfers
from phasewise_runtime.router.kv_paths import Path
from phasewise_runtime.router.pods import Pod

log = logging.getLogger(__name__)

PROOF_SECONDS = 5.0
"""Requests wait so long, from when a decode pod became ready, for the proof of one of its paths."""
SUSPECT_SECONDS = 3.0
"""A request that has waited so long on a path, which served no other one meanwhile, makes it suspected."""
COMPUTED_TOKENS = 16
"""Of each request with KV, on the average: less is what remains of prompts that decode has in its prefix cache."""

_NONE: AbstractSet[str] = frozenset()

Pair = tuple[str, str]
"""Uids of a prefill and a decode pod."""


@dataclass(slots=True, eq=False)
class KvPod:
    """One pod, from when it became ready; a restarted engine begins anew."""

    pod: Pod
    since: float
    warm: bool = False
    """Of a decode pod: its engine has answered a canary."""
    tries: int = 0
    tried_at: float = 0.0
    """Canaries of it alone, and the last of them."""
    tried: set[str] = field(default_factory=set[str])
    """Pods of the other role with which a canary or a request was tried, by uid."""
    open: set[str] = field(default_factory=set[str])
    """Those of them with which it may serve."""
    proved: set[str] = field(default_factory=set[str])
    """Those of them with which KV flows."""
    failed: set[str] = field(default_factory=set[str])
    used: Counter[str] = field(default_factory=Counter[str])
    """Of a decode pod: its requests with KV of each since the connector's counters were last looked at."""
    proved_at: float | None = None
    bytes: float | None = None


@dataclass(slots=True, eq=False)
class PathWait:
    """A request that waits for its prefill or its first token."""

    pair: Pair
    since: float
    suspect_at: float
    cut: Callable[[], None]
    """Ends the request, which is then sent elsewhere."""


def _engine(pod: Pod) -> tuple[str, ...]:
    """What a proof is about: another one has to be proved anew."""
    return pod.container, pod.role, pod.fingerprint


class KvRegistry:
    def __init__(self, on_change: Callable[[], None]) -> None:
        self.pods: dict[str, KvPod] = {}
        self.usable: dict[tuple[str, str], set[str]] = {}
        """Uids of the usable pods by role and fingerprint."""
        self.paths: dict[Pair, Path] = {}
        self.not_open: set[Pair] = set()
        """Those that were tried and are not open."""
        self.suspected: set[Pair] = set()
        self._waits: set[PathWait] = set()
        self._on_change = on_change

    # --- pods ------------------------------------------------------------------------------------------------
    def put(self, pod: Pod, now: float) -> None:
        known = self.pods.get(pod.uid)
        if known is not None and _engine(known.pod) != _engine(pod):
            self.drop(pod.uid)
            known = None
        if known is not None:
            known.pod = pod
        elif pod.usable:
            self.pods[pod.uid] = KvPod(pod, now)
        peers = self.usable.setdefault((pod.role, pod.fingerprint), set())
        (peers.add if pod.usable and not pod.aggregated else peers.discard)(pod.uid)

    def drop(self, uid: str) -> None:
        state = self.pods.pop(uid, None)
        if state is None:
            return
        self.usable[state.pod.role, state.pod.fingerprint].discard(uid)
        for peer in state.tried:
            pair = (uid, peer) if state.pod.role == PREFILL else (peer, uid)
            self.paths.pop(pair, None)
            self.not_open.discard(pair)
            self.suspected.discard(pair)
            if other := self.pods.get(peer):
                for known in (other.tried, other.open, other.proved, other.failed):
                    known.discard(uid)
                other.used.pop(uid, None)

    def peers(self, pod: Pod) -> AbstractSet[str]:
        """Usable pods of the other role with which it should be able to pass KV on, by uid."""
        if pod.aggregated:
            return _NONE
        return self.usable.get((DECODE if pod.role == PREFILL else PREFILL, pod.fingerprint), _NONE)

    # --- read by policy --------------------------------------------------------------------------------------
    def known(self, pod: Pod) -> tuple[bool, AbstractSet[str], AbstractSet[str]]:
        """What a Candidate says of a pod: whether it is proved, the pods with which it may serve, and those with which
        KV fails. A decode pod for which nothing is left to try, or whose peers have gone since, is proved, to be
        decode-only."""
        state = self.pods.get(pod.uid)
        if state is None:
            return False, _NONE, _NONE
        alone = state.proved_at is not None or self.peers(pod) <= state.tried
        settled = state.open or (pod.role == DECODE and state.warm and alone)
        return bool(settled), state.open, state.failed

    def proof_expected(self, pod: Pod, now: float) -> float:
        """Seconds that a request may wait for the proof of a decode pod's first path."""
        state = self.pods.get(pod.uid)
        return 0.0 if state is None or state.open else max(0.0, state.since + PROOF_SECONDS - now)

    # --- what requests tell ----------------------------------------------------------------------------------
    @contextlib.contextmanager
    def waiting(self, prefill: Pod, decode: Pod, now: float, cut: Callable[[], None]) -> Generator[None, None, None]:
        wait = PathWait((prefill.uid, decode.uid), now, now + SUSPECT_SECONDS, cut)
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.discard(wait)

    def report_success(self, prefill: Pod, decode: Pod, now: float) -> None:
        """A request with KV of `prefill` had its first token at `decode`."""
        pair = (prefill.uid, decode.uid)
        path = self.paths.get(pair)
        if path is not None and path.open:
            self._set(pair, kv_paths.on_success(path, now))
            self.pods[decode.uid].used[prefill.uid] += 1

    def report_failure(self, prefill: Pod, decode: Pod, reason: str, now: float) -> None:
        pair = (prefill.uid, decode.uid)
        self._set(pair, kv_paths.on_failure(self._path(pair), now, reason))

    def report_load_failure(self, prefill: Pod, decode: Pod, now: float) -> None:
        pair = (prefill.uid, decode.uid)
        self._set(pair, kv_paths.on_load_failure(self._path(pair), now))

    def report_prefill_failure(self, prefill: Pod, reason: str, now: float) -> None:
        """No decode pod gets KV of it: evidence that holds for all of its paths."""
        state = self.pods.get(prefill.uid)
        for decode in tuple(state.open) if state else ():
            self._set((prefill.uid, decode), kv_paths.on_failure(self.paths[prefill.uid, decode], now, reason))

    # --- what canaries tell ----------------------------------------------------------------------------------
    def report_warm(self, decode: Pod, now: float, *, answered: bool) -> None:
        """The completion of a decode pod alone ended."""
        if state := self.pods.get(decode.uid):
            state.tries, state.tried_at = state.tries + 1, now
            if answered and not state.warm:
                state.warm = True
                self._on_change()

    def report_canary(self, prefill: Pod, decode: Pod, result: Result, now: float, *, refused: bool = False) -> None:
        pair = (prefill.uid, decode.uid)
        path = self._path(pair)
        if refused:
            after = kv_paths.on_refusal(path, now)
        elif not result.conclusive:
            after = kv_paths.on_no_result(path, now)
        elif result.proved:
            after = kv_paths.on_canary(path, now)
            for state in self._states(pair):
                state.bytes = result.bytes
        else:
            after = kv_paths.on_failed_canary(path, now, result.reason)
        self._set(pair, after)
        if result.reason in kv_paths.OF_PREFILL and result.conclusive:
            self.report_prefill_failure(prefill, result.reason, now)

    def report_transfers(self, decode: Pod, moved: Transfers) -> None:
        """What a decode pod's connector did since the last report. Where it failed, or the engine computed prompts
        though it got their KV, it is not known which path is at fault: a canary looks at each that was used."""
        state = self.pods.get(decode.uid)
        if state is None:
            return
        computed = moved.computed is None or moved.computed >= COMPUTED_TOKENS * state.used.total()
        if state.used and (moved.failed or (moved.nothing_moved and computed)):
            for prefill in state.used:
                self._suspect((prefill, decode.uid))
        state.used.clear()

    def suspect_waits(self, now: float) -> None:
        """Suspect the paths on which requests have waited for long, and that served none since."""
        gone = list[PathWait]()
        for wait in self._waits:
            if now < wait.suspect_at:
                continue
            path = self.paths.get(wait.pair)
            if path is None:  # one of the two engines is gone, and what it had with it
                gone.append(wait)
                continue
            last = max(wait.since, path.proved_at or 0.0)
            if now - last >= SUSPECT_SECONDS:
                self._suspect(wait.pair)
                # One slow request must not keep a canary running all the time.
                wait.suspect_at = now + 2 * (now - wait.since)
        for wait in gone:
            wait.cut()

    # --- metrics ---------------------------------------------------------------------------------------------
    def counts(self) -> dict[str, int]:
        """Pairs of usable pods by state."""
        usable = set[str]().union(*self.usable.values())
        counts = Counter(path.state for pair, path in self.paths.items() if usable.issuperset(pair))
        sizes = {key: len(uids) for key, uids in self.usable.items()}
        pairs = sum(n * sizes.get((DECODE, fp), 0) for (role, fp), n in sizes.items() if role == PREFILL)
        counts[kv_paths.UNPROVED] = pairs - counts[kv_paths.PROVED] - counts[kv_paths.FAILED]
        return {state: counts[state] for state in KV_PATH_STATES}

    def failures(self) -> Iterator[tuple[Pod, Pod, str]]:
        """The paths between usable pods that fail now, and why."""
        for prefill, decode in self.not_open:
            states = self.pods[prefill], self.pods[decode]
            path = self.paths[prefill, decode]
            if path.state == kv_paths.FAILED and all(s.pod.usable for s in states):
                yield states[0].pod, states[1].pod, path.reason

    # --- inside ----------------------------------------------------------------------------------------------
    def _path(self, pair: Pair) -> Path:
        return self.paths.get(pair, kv_paths.NEW)

    def _states(self, pair: Pair) -> list[KvPod]:
        """Of both pods; none where one of them is gone."""
        states = [self.pods[uid] for uid in pair if uid in self.pods]
        return states if len(states) == len(ENGINE_ROLES) else []

    def _suspect(self, pair: Pair) -> None:
        if pair in self.paths:
            self._set(pair, kv_paths.on_suspicion(self.paths[pair]))

    def _set(self, pair: Pair, after: Path) -> None:
        states, new, before = self._states(pair), pair not in self.paths, self._path(pair)
        if not states:
            return
        self.paths[pair] = after
        (self.suspected.add if after.suspected else self.suspected.discard)(pair)
        for state, peer in zip(states, reversed(pair), strict=True):
            if after.proved_at is not None:
                state.proved_at = max(state.proved_at or 0.0, after.proved_at)
            state.tried.add(peer)
            (state.open.add if after.open else state.open.discard)(peer)
            (state.proved.add if after.state == kv_paths.PROVED else state.proved.discard)(peer)
            (state.failed.add if after.state == kv_paths.FAILED else state.failed.discard)(peer)
        (self.not_open.discard if after.open else self.not_open.add)(pair)
        if new or (before.state, before.open) != (after.state, after.open):
            self._announce(pair, before, after)

    def _announce(self, pair: Pair, before: Path, after: Path) -> None:
        prefill, decode = (state.pod for state in self._states(pair))
        extra = {"prefill_pod": prefill.name, "decode_pod": decode.name, "reason": after.reason}
        if after.state == kv_paths.FAILED:
            log.warning("KV transfer fails: requests go round it", extra=extra)
            for wait in tuple(self._waits):
                if wait.pair == pair:
                    wait.cut()
        elif after.state != before.state:
            log.info("KV transfer is proved", extra=extra)
        self._on_change()
