"""The pods as this router sees them: their state, their load, and which are ejected.

Fed by discovery (which pods exist), pd_request (success, failure) and health (probes); read by admission and
pd_request. Holds state, does no I/O.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace

from phasewise_runtime.contract import DECODE, ENGINE_ROLES
from phasewise_runtime.router import breaker as brk
from phasewise_runtime.router.breaker import Breaker
from phasewise_runtime.router.capacity import Sizes, sizes_of
from phasewise_runtime.router.collectors import KvCollector, LoadsCollector
from phasewise_runtime.router.engine_client import KV_PATH_FAILED, POD_GONE
from phasewise_runtime.router.kv_registry import KvRegistry
from phasewise_runtime.router.loads import Loads
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.pods import Candidate, Pod

STATES = ("ready", "not_ready", "terminating", "ejected")

POD_GONE_GRACE_SECONDS = 5.0
"""From the deletion of a pod's object until its connections are closed here: those to a dead node never end."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    pod: Pod
    load: int = 0
    breaker: Breaker = field(default_factory=Breaker)
    half_open_request: object | None = None
    """Stands for the request that is let through while the breaker is half-open."""
    inflight: set[InflightRequest] = field(default_factory=set["InflightRequest"])

    @property
    def closed_to_requests(self) -> bool:
        return self.breaker.state == "open" or (
            self.breaker.state == "half_open" and self.half_open_request is not None
        )

    def set_breaker(self, after: Breaker) -> None:
        if after.state != self.breaker.state:
            # The half-open request gave its result, even if it goes on streaming.
            self.half_open_request = None
        self.breaker = after


@dataclass(slots=True, eq=False)
class InflightRequest:
    """A prefill or decode request in flight to a pod."""

    cut: asyncio.Future[str]
    """Done when the request has to end: POD_GONE or KV_PATH_FAILED."""
    succeeded: bool = False
    """The pod served it: it gave KV parameters or a first token, and its end was not the pod's fault."""

    def end(self, reason: str) -> None:
        if not self.cut.done():
            self.cut.set_result(reason)


class PodRegistry:
    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._entries: dict[str, _Entry] = {}
        self._loads = Loads()
        metrics.registry.register(LoadsCollector(self._loads, clock))
        self.kv = KvRegistry(self._notify)
        metrics.registry.register(KvCollector(self.kv, clock))
        self._metrics = metrics
        self._clock = clock
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self.synced = False
        """The first complete list of pods has been seen."""
        self.sizes: Sizes = {}
        self.models: frozenset[str] = frozenset()
        """Names by which the pods' engines know the model."""

    # --- fed by discovery ------------------------------------------------------------------------------------
    def replace_all(self, pods: Iterable[Pod]) -> None:
        """Replace all known pods."""
        given = {p.uid: p for p in pods}
        for uid in [u for u in self._entries if u not in given]:
            self._drop(uid)
        for pod in given.values():
            self._put(pod)
        self.synced = True
        self._publish()

    def put(self, pod: Pod) -> None:
        self._put(pod)
        self._publish()

    def remove(self, uid: str) -> None:
        self._drop(uid)
        self._publish()

    # --- read by requests ------------------------------------------------------------------------------------
    def candidates(self, role: str, tried: Mapping[str, int] | None = None) -> list[Candidate]:
        seen = tried or {}
        known = self.kv.known
        return [
            Candidate(e.pod, e.load, e.closed_to_requests, seen.get(e.pod.uid, 0), *known(e.pod))
            for e in self._entries.values()
            if e.pod.role == role and e.pod.usable
        ]

    def can_serve(self) -> bool:
        """At least one decode pod takes requests now."""
        return any(not c.ejected for c in self.candidates(DECODE))

    def accepts_placed(self, pod: Pod) -> bool:
        """A request that was placed on `pod` may still be sent there."""
        entry = self._entries.get(pod.uid)
        return entry is not None and entry.pod.usable and entry.breaker.state != "open"

    def is_leaving(self, pod: Pod) -> bool:
        """The pod is being deleted or is gone: that its engine ends is no surprise."""
        entry = self._entries.get(pod.uid)
        return entry is None or entry.pod.terminating

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def changed(self, timeout: float) -> bool:
        """Wait until something about the pods changes; False after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True

    @contextlib.contextmanager
    def reserve(self, pod: Pod) -> Generator[None, None, None]:
        """Count a request as placed on `pod`."""
        entry = self._entries.get(pod.uid) or _Entry(pod)
        entry.load += 1
        request = object()
        if entry.breaker.state == "half_open" and entry.half_open_request is None:
            entry.half_open_request = request
        try:
            yield
        finally:
            entry.load -= 1
            if entry.half_open_request is request:
                entry.half_open_request = None
                self._notify()

    @contextlib.contextmanager
    def inflight(self, pod: Pod) -> Generator[InflightRequest, None, None]:
        """Count a prefill or decode request as in flight to `pod`."""
        entry = self._entries.get(pod.uid)
        request = InflightRequest(asyncio.get_running_loop().create_future())
        if entry is None:
            request.end(POD_GONE)
        else:
            entry.inflight.add(request)
        self._metrics.inflight.labels(pod.role).inc()
        self._loads.begin(pod.role, pod.name, self._clock())
        try:
            yield request
        finally:
            if entry is not None:
                entry.inflight.discard(request)
            self._metrics.inflight.labels(pod.role).dec()
            self._loads.end(pod.role, pod.name, self._clock(), succeeded=request.succeeded)

    @contextlib.contextmanager
    def waiting_for_kv(self, prefill: Pod, decode: Pod, request: InflightRequest) -> Generator[None, None, None]:
        """Count a request as waiting on the KV of `prefill`; it ends where that is found not to flow."""
        with self.kv.waiting(prefill, decode, self._clock(), lambda: request.end(KV_PATH_FAILED)):
            yield

    # --- fed by requests and health --------------------------------------------------------------------------
    def report_result(self, pod: Pod, result: str) -> None:
        """A request that the pod served has ended: how it counts by the latency targets."""
        if pod.uid in self._entries and pod.revision:
            self._metrics.revision_requests.labels(pod.role, pod.revision, result).inc()

    def report_success(self, pod: Pod) -> None:
        entry = self._entries.get(pod.uid)
        if entry and entry.breaker != (after := brk.on_success(entry.breaker)):
            if entry.breaker.state == "half_open":
                log.warning("pod serves again", extra={"pod": pod.name, "role": pod.role})
            self._set(entry, after)

    def report_failure(self, pod: Pod, reason: str, *, hard: bool) -> None:
        entry = self._entries.get(pod.uid)
        if entry is None:
            return
        after = brk.on_failure(entry.breaker, self._clock(), hard=hard, last=self._is_last(entry))
        if after.state == "open" and entry.breaker.state != "open":
            self._metrics.ejections.labels(pod.role, pod.name, reason).inc()
            wait = brk.backoff(after.ejections)
            extra = {"pod": pod.name, "role": pod.role, "reason": reason, "probe_after_seconds": wait}
            log.warning("pod ejected: its requests fail", extra=extra)
        self._set(entry, after)

    def probes_due(self) -> list[Pod]:
        now = self._clock()
        return [e.pod for e in self._entries.values() if e.pod.usable and e.breaker.probe_due(now)]

    def report_probe(self, pod: Pod, *, ok: bool) -> None:
        if entry := self._entries.get(pod.uid):
            self._set(entry, brk.on_probe(entry.breaker, self._clock(), ok=ok))

    # --- inside ----------------------------------------------------------------------------------------------
    def _put(self, pod: Pod) -> None:
        self.kv.put(pod, self._clock())
        entry = self._entries.get(pod.uid)
        if entry is None:
            self._entries[pod.uid] = _Entry(pod)
            self._loads.add(pod.role, pod.name, self._clock())
            log.info("pod added", extra={"pod": pod.name, "role": pod.role, "state": pod.state})
            return
        if entry.pod.state != pod.state:
            log.info("pod changed", extra={"pod": pod.name, "role": pod.role, "state": pod.state})
        restarted = pod.usable and not entry.pod.usable
        entry.pod = pod
        if restarted and entry.breaker.state == "open":
            # Not ready and ready again: its own probe has just passed, so it need not wait out the back-off.
            entry.set_breaker(replace(entry.breaker, state="half_open", failures=0))

    def _drop(self, uid: str) -> None:
        entry = self._entries.pop(uid, None)
        self.kv.drop(uid)
        if entry:
            log.info("pod removed", extra={"pod": entry.pod.name, "role": entry.pod.role})
            if not any(e.pod.name == entry.pod.name for e in self._entries.values()):
                self._loads.drop(entry.pod.role, entry.pod.name)
                self._metrics.forget_pod(entry.pod.name)
            role, revision = entry.pod.role, entry.pod.revision
            if not any((e.pod.role, e.pod.revision) == (role, revision) for e in self._entries.values()):
                self._metrics.forget_revision(role, revision)
            if entry.inflight:
                asyncio.get_running_loop().call_later(POD_GONE_GRACE_SECONDS, self._end_requests, entry)

    def _end_requests(self, entry: _Entry) -> None:
        if entry.pod.uid not in self._entries:
            for request in entry.inflight:
                request.end(POD_GONE)

    def _is_last(self, entry: _Entry) -> bool:
        """No other pod could take its requests. Never true of prefill pods: a decode pod can do both phases."""
        others = (e for e in self._entries.values() if e is not entry and e.pod.role == DECODE and e.pod.usable)
        return entry.pod.role == DECODE and not any(e.breaker.state == "closed" for e in others)

    def _set(self, entry: _Entry, after: Breaker) -> None:
        if after != entry.breaker:
            entry.set_breaker(after)
            self._publish()

    def _publish(self) -> None:
        counts = {(role, state): 0 for role in ENGINE_ROLES for state in STATES}
        for e in self._entries.values():
            ejected = e.pod.usable and e.breaker.state == "open"
            counts[e.pod.role, "ejected" if ejected else e.pod.state] += 1
        for (role, state), n in counts.items():
            self._metrics.pods.labels(role, state).set(n)
        self.sizes = sizes_of(e.pod for e in self._entries.values())
        self.models = frozenset(e.pod.model for e in self._entries.values() if e.pod.model)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener()
