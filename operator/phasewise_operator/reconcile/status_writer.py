"""Writes the status of services, and records Events of what changed in it. I/O.

What it remembers between passes only spares writes: a new operator begins without it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from phasewise_operator.kinds import EVENT, INFERENCE_SERVICE, POOL_SCALER, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.reconcile.conditions import KV_TRANSFER_READY, LIVE_CONDITIONS, ConditionUpdate, conditions
from phasewise_operator.reconcile.events import changed_conditions, condition_event, decision_event, fresh_decisions
from phasewise_operator.reconcile.status import write_pause
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)
EVENT_SECONDS = 600.0
"""The same Event about scaling or KV is not recorded again for so long, however often the condition comes and goes."""


@dataclass(frozen=True)
class EventRecorder:
    kube: Kube
    event_times: dict[tuple[Key, str, str], float] = field(default_factory=dict[tuple[Key, str, str], float])
    """When an Event of a condition that comes and goes was last recorded, by service, condition and reason."""
    clock: Callable[[], float] = time.monotonic

    def forget(self, key: Key) -> None:
        for ref in [ref for ref in self.event_times if ref[0] == key]:
            del self.event_times[ref]

    async def record(
        self, live: Manifest, before: Manifest, after: Manifest, updates: Sequence[ConditionUpdate], now: str
    ) -> None:
        """Events of what differs between two statuses of a service. One that is refused loses nothing."""
        key = (live["metadata"]["namespace"], live["metadata"]["name"])
        changed = [u for u in changed_conditions(updates, before) if self._is_due(key, u)]
        events = [condition_event(live, u, now) for u in changed]
        events += [decision_event(live, d, now) for d in fresh_decisions(before, after)]
        for event in events:
            try:
                await self.kube.create(EVENT, live["metadata"]["namespace"], event)
            except KubeError as error:
                log.log(logging.INFO if error.namespace_ends else logging.WARNING, "event: %s", error)

    def _is_due(self, key: Key, update: ConditionUpdate) -> bool:
        if update.type not in (KV_TRANSFER_READY, *LIVE_CONDITIONS):
            return True
        ref, now = (key, update.type, update.reason), self.clock()
        due = now - self.event_times.get(ref, -math.inf) >= EVENT_SECONDS
        if due:
            self.event_times[ref] = now
        return due


@dataclass(frozen=True)
class StatusWriter:
    kube: Kube
    store: Store
    recorder: EventRecorder
    last_write: dict[Key, float] = field(default_factory=dict[Key, float])
    """When each service's status was written: one that differs in messages, progress or figures alone waits."""
    clock: Callable[[], float] = time.monotonic

    def forget(self, key: Key) -> None:
        self.last_write.pop(key, None)
        self.recorder.forget(key)

    async def write(
        self, live: Manifest, status: Manifest, updates: Sequence[ConditionUpdate], now: str
    ) -> float | None:
        """Returns after how many seconds a status that is held back now is due; None: nothing is held back."""
        before, meta = live.get("status", {}), live["metadata"]
        key = (meta["namespace"], meta["name"])
        since = self.clock() - self.last_write.get(key, -math.inf)
        pause = write_pause(before, status)
        if pause is None or since < pause:
            return None if pause is None else pause - since + 0.1
        manifest = {**INFERENCE_SERVICE.identity(*key, meta["uid"]), "status": status}
        try:
            self.store.put(INFERENCE_SERVICE, await self.kube.apply(manifest, "status"))
        except KubeError as error:
            if not error.gone_or_conflict:  # deleted, or deleted and made again: the watch brings another pass
                raise
            return None
        self.last_write[key] = self.clock()
        await self.recorder.record(live, before, status, updates, now)
        return None

    async def write_conditions(self, live: Manifest, updates: Sequence[ConditionUpdate], now: str) -> float | None:
        """For a spec that cannot be acted on: the rest of the status stays as it was. Returns what `write` does."""
        generation, before = live["metadata"]["generation"], live.get("status", {})
        fresh = [c.to_json() for c in conditions(updates, generation, before, now)]
        return await self.write(live, {**before, "conditions": fresh, "observedGeneration": generation}, updates, now)

    async def write_scalers(self, statuses: Sequence[Manifest]) -> None:
        """Statuses of PoolScalers; of those that were deleted meanwhile nothing is written."""
        for status in statuses:
            try:
                self.store.put(POOL_SCALER, await self.kube.apply(status, "status"))
            except KubeError as error:
                if not error.gone_or_conflict:
                    raise
