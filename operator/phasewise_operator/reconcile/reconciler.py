"""One pass over one service: observe (I/O) -> plan (pure) -> apply (I/O) -> report (pure) -> status (I/O).

Level-triggered: a pass computes everything from all that is observed, and remembers nothing. A change of an object only
says that a pass is due.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from phasewise_operator.api.status import InferenceServiceStatus
from phasewise_operator.kinds import INFERENCE_SERVICE, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.observed import Failure, Observed
from phasewise_operator.reconcile import report
from phasewise_operator.reconcile.apply import Applier
from phasewise_operator.reconcile.conditions import READY, RECONCILING, ConditionUpdate, Reason
from phasewise_operator.reconcile.contention import Contention
from phasewise_operator.reconcile.deletion_cost import deletion_costs
from phasewise_operator.reconcile.failures import NAMESPACE_ENDS, Retries
from phasewise_operator.reconcile.observe import Observer
from phasewise_operator.reconcile.plan import Changes, make_plan, repair_changes
from phasewise_operator.reconcile.role_views import RoleView, role_views
from phasewise_operator.reconcile.status import scaler_statuses, stale_in, status_of
from phasewise_operator.reconcile.status_writer import StatusWriter
from phasewise_operator.render.context import Context, Images, Permissions, RenderError
from phasewise_operator.scaling.signals.kv_evidence import KvEvidence
from phasewise_operator.scaling.types import Recommendation
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)
PENDING_SECONDS = 10.0
"""A service that is not settled is looked at again so soon: what Events alone show triggers nothing."""
NAMESPACE_SECONDS = 30.0
"""A service in a namespace that is being deleted is deleted with it."""


class Recommender(Protocol):
    def recommendation(self, key: Key, uid: str) -> Recommendation:
        """What the scaling loop last recommended for the service with that uid."""
        ...

    def kv_evidence(self, key: Key, uid: str) -> KvEvidence:
        """What the routers of the service with that uid say of KV transfer."""
        ...

    def service_changed(self, key: Key) -> None:
        """The store has another version of the service, or none any more."""
        ...


@dataclass(frozen=True)
class Result:
    """What is to become of the service's key after a pass."""

    complete: bool = True
    """False: a child could not be written."""
    requeue_after: float | None = None
    """Reconcile again after so many seconds at the latest; None: only when something has changed."""


@dataclass(frozen=True)
class Reconciler:
    kube: Kube
    store: Store
    images: Images
    resync_seconds: float
    recommender: Recommender
    status: StatusWriter
    permissions: Permissions = field(default_factory=Permissions)
    pod_deletion_cost: bool = True
    """Whether pods may be annotated before a Deployment is made smaller; without, the ReplicaSet controller chooses."""
    contention: Contention = field(default_factory=Contention)
    observer: Observer = field(default_factory=Observer)
    retries: Retries = field(default_factory=Retries)

    async def reconcile(self, key: Key) -> Result:
        """Raises KubeError where the API server does not do what no pass can go on without."""
        live = self.store.service(key)
        if live is None or "deletionTimestamp" in live["metadata"]:
            self.status.forget(key)
            self.retries.keep(key, ())
            self.observer.forget(key)
            return Result()  # children go with their owner
        live = _with_readable_status(live)
        unread = self.store.unread(key[0])
        return await (self._hold(live, unread) if unread else self._pass(key, live))

    async def _pass(self, key: Key, live: Manifest) -> Result:
        try:
            ctx = Context.of(live, self.images, self.permissions)
        except ValidationError as error:
            self.retries.keep(key, ())
            return await self._refuse(live, _readable(error))
        observed = await self.observer.observe(self.store, self.kube, key, ctx.uid)
        recommendation = self.recommender.recommendation(key, ctx.uid)
        evidence = self.recommender.kv_evidence(key, ctx.uid)
        try:
            plan = make_plan(ctx, observed, recommendation, evidence.proved, _now())
        except RenderError as error:
            failures = await self._apply(ctx, live, observed, repair_changes(ctx, observed))
            return self._anew(key) if failures is None else await self._refuse(live, str(error), failures)
        costs = deletion_costs(ctx.namespace, plan, observed, recommendation) if self.pod_deletion_cost else ()
        failures = await self._apply(ctx, live, observed, plan.changes, costs)
        if failures is None:
            return self._anew(key)
        if any(f.reason == NAMESPACE_ENDS for f in failures):
            log.info("%s/%s: its namespace is being deleted, and the service with it", *key)
            return Result(complete=False, requeue_after=NAMESPACE_SECONDS)
        now = _now()
        views = role_views(ctx, plan, observed, now)
        updates = report.report(ctx, plan, observed, views, failures, evidence, live.get("status", {}))
        status = status_of(ctx, plan, observed, views, updates, recommendation, live, now)
        held_back = await self.status.write(live, status, updates, now)
        await self.status.write_scalers(scaler_statuses(ctx, observed))
        return self._result(key, views.values(), updates, failures, (held_back, stale_in(status, now)))

    async def report_internal_error(self, key: Key) -> None:
        """A defect of the operator is shown in the service's status; best effort."""
        live = self.store.service(key)
        if live is not None:
            message = "the operator failed on this service; its log says more, and it tries again"
            updates = report.refused(Reason.INTERNAL_ERROR, message)
            with contextlib.suppress(KubeError):
                await self.status.write_conditions(_with_readable_status(live), updates, _now())

    def _anew(self, key: Key) -> Result:
        """The watch does not show any more what this pass has found."""
        self.recommender.service_changed(key)
        return Result(requeue_after=0.0)

    async def _refuse(self, live: Manifest, message: str, failures: Sequence[Failure] = ()) -> Result:
        held_back = await self.status.write_conditions(live, report.refused(Reason.INVALID_SPEC, message), _now())
        again = self.retries.due_in((live["metadata"]["namespace"], live["metadata"]["name"]))
        pauses = (held_back, again, PENDING_SECONDS if failures else None)
        return Result(not failures, requeue_after=min((p for p in pauses if p is not None), default=None))

    async def _hold(self, live: Manifest, unread: Sequence[str]) -> Result:
        """Nothing is made or deleted while children are unknown. Another pass comes when they have been read."""
        why = min(filter(None, unread), default="")
        if not why:
            return Result()  # the operator has only just begun to read
        held_back = await self.status.write_conditions(live, report.held(live.get("status", {}), why), _now())
        return Result(complete=False, requeue_after=held_back)

    async def _apply(
        self, ctx: Context, live: Manifest, observed: Observed, changes: Changes, costs: Sequence[Manifest] = ()
    ) -> list[Failure] | None:
        """None: the service is not any more what the changes were planned for, and nothing was written."""
        key = (ctx.namespace, ctx.name)
        if not changes or ctx.spec.paused:
            self.retries.keep(key, ())
            return []
        applier = Applier(self.kube, self.store, self.retries, self.contention, key, ctx.uid)
        if waiting := applier.waiting(changes):
            return waiting
        if await self._is_stale(live):
            return None
        return await applier.apply(changes, observed, costs)

    async def _is_stale(self, live: Manifest) -> bool:
        """Asks the API server itself, and puts in the store what the watch has not shown yet."""
        meta = live["metadata"]
        fresh = await self.kube.get(INFERENCE_SERVICE, meta["namespace"], meta["name"])
        if fresh is None:
            self.store.drop(INFERENCE_SERVICE, live)
            return True
        self.store.put(INFERENCE_SERVICE, fresh)
        now = fresh["metadata"]
        return (now["uid"], now["generation"]) != (meta["uid"], meta["generation"]) or "deletionTimestamp" in now

    def _result(
        self,
        key: Key,
        views: Collection[RoleView],
        updates: Sequence[ConditionUpdate],
        failures: Sequence[Failure],
        status_due: tuple[float | None, ...],
    ) -> Result:
        """The soonest of when the status is due, when a child is to be tried again or Events are to be read, and when
        the service is to be looked at again."""
        statuses = {(u.type, u.status.value) for u in updates}
        growing = any(view.ready < view.desired for view in views)
        settled = not growing and not failures and {(READY, "True"), (RECONCILING, "False")} <= statuses
        again = self.retries.due_in(key), self.observer.due_in(key), self.resync_seconds if settled else PENDING_SECONDS
        pauses = (*status_due, *again)
        return Result(not failures, requeue_after=min(p for p in pauses if p is not None))


def _with_readable_status(live: Manifest) -> Manifest:
    """A status that another version or a person wrote must not keep this one from writing its own."""
    return {**live, "status": InferenceServiceStatus.readable(live.get("status"))}


def _readable(error: ValidationError) -> str:
    """One clause for each field; an engine argument of no usable type fails each type it could have been."""
    clauses: dict[str, str] = {}
    for detail in error.errors():
        path = [str(part) for part in detail["loc"]]
        if path[:2] == ["engine", "args"] and len(path) > 2:
            hint = "write text, a number, true, false, a list of texts or numbers, or nested settings"
            clauses[".".join(path[:3])] = hint
        else:
            clauses[".".join(path)] = detail["msg"]
    return "; ".join(f"spec.{path}: {clause}" for path, clause in clauses.items())


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
