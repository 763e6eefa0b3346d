"""Workers that take a service's key from the queue and carry one pass through, from observe to report. I/O.

Level-triggered: a pass looks at everything and remembers nothing; an event only says "look now".
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from phasewise_operator.kinds import EVENT, INFERENCE_SERVICE, POOL_SCALER, Manifest
from phasewise_operator.kube import Kube, KubeError, NotLeadingError
from phasewise_operator.metrics import Metrics
from phasewise_operator.observed import Failure, Observed
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile import report
from phasewise_operator.reconcile.apply import apply_plan
from phasewise_operator.reconcile.deletion_cost import deletion_costs
from phasewise_operator.reconcile.events import condition_event, decision_event
from phasewise_operator.reconcile.observe import observe
from phasewise_operator.reconcile.plan import Plan, make_plan, repair_plan
from phasewise_operator.reconcile.report import ConditionUpdate
from phasewise_operator.reconcile.status import (
    LIVE_CONDITIONS,
    conditions,
    fresh_decisions,
    news,
    scaler_statuses,
    should_write,
    status_of,
)
from phasewise_operator.render.context import Context, Images, RenderError
from phasewise_operator.rollout import Rollout
from phasewise_operator.scaling.types import FIGURES_SECONDS, Recommendation
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)
PENDING_SECONDS = 10.0
"""A service that is not settled is looked at again so soon: what Events alone show triggers nothing."""
REFUSED_SECONDS = 30.0
EVENT_SECONDS = 600.0
"""An Event about scaling that was made is not made again for so long, however often the condition comes and goes."""


class Recommender(Protocol):
    def recommendation(self, key: Key, uid: str) -> Recommendation:
        """What the scaling loop last made of the service with that uid."""
        ...


@dataclass(frozen=True)
class Controller:
    kube: Kube
    store: Store
    queue: WorkQueue[Key]
    images: Images
    metrics: Metrics
    resync_seconds: float
    recommender: Recommender
    last_write: dict[Key, float] = field(default_factory=dict[Key, float])
    """When each service's status was written, for those that change in figures alone."""
    told: dict[tuple[Key, str, str], float] = field(default_factory=dict[tuple[Key, str, str], float])
    """When an Event of a condition that may come and go with the load was last made."""

    async def work(self) -> None:
        """One worker, until it is cancelled or may not write any more."""
        while True:
            key = await self.queue.get()
            try:
                with self.metrics.reconcile_seconds.time():
                    result = await self.reconcile(key)
            except NotLeadingError:
                self.queue.failed(key)
                raise
            except KubeError as error:
                pause = self.queue.failed(key)
                self.metrics.reconciles.labels("error").inc()
                log.warning("%s/%s: %s; again in %.1f s", *key, error, pause)
            except Exception:
                pause = self.queue.failed(key)
                self.metrics.reconciles.labels("error").inc()
                log.exception("%s/%s: unexpected; again in %.1f s", *key, pause)
                await self._report_internal_error(key)
            else:
                self.metrics.reconciles.labels("ok" if result else "incomplete").inc()

    async def _report_internal_error(self, key: Key) -> None:
        """A defect of ours must not look like silence."""
        live = self.store.service(key)
        if live is not None:
            message = "the operator failed on this service; its log says more, and it tries again"
            with contextlib.suppress(KubeError):
                await self._write_conditions(live, report.refused("InternalError", message))

    async def reconcile(self, key: Key) -> bool:
        """One pass. False: a child could not be written, and the key comes back after a pause."""
        live = self.store.service(key)
        if live is None or "deletionTimestamp" in live["metadata"]:
            self._forget(key)
            self.queue.done(key)  # children go with their owner
            return True
        try:
            ctx = Context.of(live, self.images)
        except ValidationError as error:
            return await self._refuse(key, live, _readable(error))
        observed = await observe(self.store, self.kube, key, ctx.uid)
        recommendation = self.recommender.recommendation(key, ctx.uid)
        try:
            plan = make_plan(ctx, observed, recommendation)
        except RenderError as error:
            await self._repair(ctx, live, observed)
            return await self._refuse(key, live, str(error))
        failures: list[Failure] = []
        if (plan.create or plan.write or plan.remove) and not ctx.spec.paused:
            if await self._is_stale(live):
                self.queue.add(key)
                self.queue.done(key)
                return True
            costs = deletion_costs(ctx.namespace, plan, observed, recommendation)
            failures = await apply_plan(self.kube, self.store, plan, observed, ctx.uid, costs)
        updates = report.report(ctx, plan, observed, failures, recommendation)
        generation, before = live["metadata"]["generation"], live.get("status", {})
        status = status_of(ctx, plan, observed, updates, recommendation, generation, before, _now())
        await self._put_status(live, status, updates)
        await self._put_scaler_statuses(scaler_statuses(ctx, observed))
        growing = any(v.ready < v.desired for v in report.role_views(ctx, plan, observed).values())
        return self._requeue(key, updates, failures, growing)

    def _forget(self, key: Key) -> None:
        self.last_write.pop(key, None)
        for ref in [r for r in self.told if r[0] == key]:
            del self.told[ref]

    async def _refuse(self, key: Key, live: Manifest, message: str) -> bool:
        await self._write_conditions(live, report.refused("InvalidSpec", message))
        self.queue.done(key)
        return True

    async def _repair(self, ctx: Context, live: Manifest, observed: Observed) -> None:
        """The engines stay as they are until the spec can be rendered; the endpoint before them is looked after."""
        writes = repair_plan(ctx, observed)
        if writes and not ctx.spec.paused and not await self._is_stale(live):
            plan = Plan(desired=writes, engines=(), rollout=Rollout({}, {}, ""), write=writes)
            await apply_plan(self.kube, self.store, plan, observed, ctx.uid)

    def _requeue(
        self, key: Key, updates: Sequence[ConditionUpdate], failures: Sequence[Failure], growing: bool
    ) -> bool:
        if failures:
            first = failures[0]
            text = "%s/%s: %d children could not be written; the first: %s %s: %s"
            log.warning(text, *key, len(failures), first.kind, first.name, first.message)
        if any(not f.refused for f in failures):
            self.queue.failed(key)
            return False
        self.queue.done(key)
        told = {(v.type, v.status.value) for v in updates}
        settled = not growing and {("Ready", "True"), ("Reconciling", "False")} <= told
        pause = REFUSED_SECONDS if failures else self.resync_seconds if settled else PENDING_SECONDS
        self.queue.add_after(key, pause)
        return not failures

    async def _is_stale(self, live: Manifest) -> bool:
        """Before writing: is the service still the one we planned for? What the watch has missed is taken in."""
        meta = live["metadata"]
        fresh = await self.kube.get(INFERENCE_SERVICE, meta["namespace"], meta["name"])
        if fresh is None:
            self.store.drop(INFERENCE_SERVICE, live)
            return True
        self.store.put(INFERENCE_SERVICE, fresh)
        now = fresh["metadata"]
        return (now["uid"], now["generation"]) != (meta["uid"], meta["generation"]) or "deletionTimestamp" in now

    async def _write_conditions(self, live: Manifest, updates: Sequence[ConditionUpdate]) -> None:
        """Where the spec cannot be read there is nothing else to say: the rest stays as it was."""
        generation, before = live["metadata"]["generation"], live.get("status", {})
        fresh = [c.to_json() for c in conditions(updates, generation, before, _now())]
        await self._put_status(live, {**before, "conditions": fresh, "observedGeneration": generation}, updates)

    async def _put_status(self, live: Manifest, status: Manifest, updates: Sequence[ConditionUpdate]) -> None:
        before, meta = live.get("status", {}), live["metadata"]
        key = (meta["namespace"], meta["name"])
        since = time.monotonic() - self.last_write.get(key, -math.inf)
        if not should_write(before, status, since):
            if status != before and since < FIGURES_SECONDS:
                self.queue.add_after(key, FIGURES_SECONDS - since + 0.1)  # what is held back now is not forgotten
            return
        manifest = {**INFERENCE_SERVICE.identity(*key, meta["uid"]), "status": status}
        try:
            self.store.put(INFERENCE_SERVICE, await self.kube.apply(manifest, "status"))
        except KubeError as error:
            if error.status not in (404, 409):  # deleted, or deleted and made again: the next pass will see
                raise
            return
        self.last_write[key] = time.monotonic()
        told = [condition_event(live, v, _now()) for v in news(updates, before) if self._is_due(key, v)]
        await self._tell(live, [*told, *(decision_event(live, d, _now()) for d in fresh_decisions(before, status))])

    def _is_due(self, key: Key, update: ConditionUpdate) -> bool:
        """The same Event about scaling is not made again and again."""
        if update.type not in LIVE_CONDITIONS:
            return True
        ref, now = (key, update.type, update.reason), time.monotonic()
        due = now - self.told.get(ref, -math.inf) >= EVENT_SECONDS
        if due:
            self.told[ref] = now
        return due

    async def _put_scaler_statuses(self, statuses: Sequence[Manifest]) -> None:
        for status in statuses:
            try:
                self.store.put(POOL_SCALER, await self.kube.apply(status, "status"))
            except KubeError as error:
                if error.status not in (404, 409):
                    raise

    async def _tell(self, live: Manifest, events: Sequence[Manifest]) -> None:
        """Events are a courtesy: one that is refused loses nothing."""
        for event in events:
            try:
                await self.kube.create(EVENT, live["metadata"]["namespace"], event)
            except KubeError as error:
                log.warning("event: %s", error)


def _readable(error: ValidationError) -> str:
    """One clause a field; an engine argument of no usable type fails each type it could have been."""
    told: dict[str, str] = {}
    for one in error.errors():
        place = [str(part) for part in one["loc"]]
        if place[:2] == ["engine", "args"] and len(place) > 2:
            what = "write text, a number, true, false or a list of texts; nested settings as JSON text, '{\"a\": 1}'"
            told[".".join(place[:3])] = what
        else:
            told[".".join(place)] = one["msg"]
    return "; ".join(f"spec.{place}: {what}" for place, what in told.items())


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
