"""Workers that take a service's key from the queue and carry one pass through, from observe to report. I/O.

Level-triggered: a pass looks at everything and remembers nothing; an event only says "look now".
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_operator.kinds import EVENT, INFERENCE_SERVICE, Manifest
from phasewise_operator.kube import Kube, KubeError, NotLeadingError
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile import report
from phasewise_operator.reconcile.apply import carry_out
from phasewise_operator.reconcile.evidence import EvidenceReader
from phasewise_operator.reconcile.observe import observe
from phasewise_operator.reconcile.plan import Plan, make_plan, repair_plan
from phasewise_operator.reconcile.report import Verdict
from phasewise_operator.reconcile.state import Failure, Observed
from phasewise_operator.render.context import Context, Images, RenderError
from phasewise_operator.rollout import Rollout
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)
PENDING_SECONDS = 10.0
"""A service that is not settled is looked at again so soon: what Events alone show triggers nothing."""
REFUSED_SECONDS = 30.0
EVIDENCE_SECONDS = 30.0
"""How often the routers of a settled service are asked how KV transfer went."""


@dataclass(frozen=True)
class Controller:
    kube: Kube
    store: Store
    queue: WorkQueue[Key]
    images: Images
    metrics: Metrics
    resync_seconds: float
    evidence: EvidenceReader

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
                await self._confess(key)
            else:
                self.metrics.reconciles.labels("ok" if result else "incomplete").inc()

    async def _confess(self, key: Key) -> None:
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
            self.queue.done(key)  # children go with their owner
            return True
        try:
            ctx = _context(live, self.images)
        except ValidationError as error:
            return await self._refuse(key, live, _readable(error))
        observed = await observe(self.store, self.kube, self.evidence, key, ctx.uid)
        try:
            plan = make_plan(ctx, observed)
        except RenderError as error:
            await self._repair(ctx, live, observed)
            return await self._refuse(key, live, str(error))
        failures: list[Failure] = []
        if (plan.write or plan.remove) and not ctx.spec.paused:
            if await self._is_stale(live):
                self.queue.add(key)
                self.queue.done(key)
                return True
            failures = await carry_out(self.kube, self.store, plan, observed, ctx.uid)
        verdicts = report.report(ctx, plan, observed, failures)
        await self._write_status(ctx, live, plan, observed, verdicts)
        return self._come_back(ctx, key, verdicts, failures)

    async def _refuse(self, key: Key, live: Manifest, message: str) -> bool:
        await self._write_conditions(live, report.refused("InvalidSpec", message))
        self.queue.done(key)
        return True

    async def _repair(self, ctx: Context, live: Manifest, observed: Observed) -> None:
        """The engines stay as they are until the spec can be rendered; the endpoint before them is looked after."""
        writes = repair_plan(ctx, observed)
        if writes and not ctx.spec.paused and not await self._is_stale(live):
            plan = Plan(desired=writes, engines=(), rollout=Rollout({}, {}, ""), write=writes)
            await carry_out(self.kube, self.store, plan, observed, ctx.uid)

    def _come_back(self, ctx: Context, key: Key, verdicts: Sequence[Verdict], failures: Sequence[Failure]) -> bool:
        if failures:
            first = failures[0]
            text = "%s/%s: %d children could not be written; the first: %s %s: %s"
            log.warning(text, *key, len(failures), first.kind, first.name, first.message)
        if any(not f.refused for f in failures):
            self.queue.failed(key)
            return False
        self.queue.done(key)
        settled = {("Ready", "True"), ("Reconciling", "False")} <= {(v.type, v.status.value) for v in verdicts}
        steady = min(EVIDENCE_SECONDS, self.resync_seconds) if ctx.disaggregated else self.resync_seconds
        pause = REFUSED_SECONDS if failures else steady if settled else PENDING_SECONDS
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

    async def _write_status(
        self, ctx: Context, live: Manifest, plan: Plan, observed: Observed, verdicts: Sequence[Verdict]
    ) -> None:
        generation, before = live["metadata"]["generation"], live.get("status", {})
        status = report.status_of(ctx, plan, observed, verdicts, generation, before, _now())
        await self._put_status(live, status, verdicts)

    async def _write_conditions(self, live: Manifest, verdicts: Sequence[Verdict]) -> None:
        """Where the spec cannot be read there is nothing else to say: the rest stays as it was."""
        generation, before = live["metadata"]["generation"], live.get("status", {})
        fresh = [c.to_json() for c in report.conditions(verdicts, generation, before, _now())]
        await self._put_status(live, {**before, "conditions": fresh, "observedGeneration": generation}, verdicts)

    async def _put_status(self, live: Manifest, status: Manifest, verdicts: Sequence[Verdict]) -> None:
        before = live.get("status", {})
        if status == before:
            return
        meta = live["metadata"]
        identity = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
        manifest = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": identity, "status": status}
        try:
            self.store.put(INFERENCE_SERVICE, await self.kube.apply(manifest, "status"))
        except KubeError as error:
            if error.status not in (404, 409):  # deleted, or deleted and made again: the next pass will see
                raise
            return
        await self._tell(live, report.news(verdicts, before))

    async def _tell(self, live: Manifest, news: Sequence[Verdict]) -> None:
        """Events are a courtesy: one that is refused loses nothing."""
        for verdict in news:
            try:
                await self.kube.create(EVENT, live["metadata"]["namespace"], event_of(live, verdict, _now()))
            except KubeError as error:
                log.warning("event: %s", error)


def event_of(live: Manifest, verdict: Verdict, now: str) -> Manifest:
    meta = live["metadata"]
    good = (verdict.type == "Ready") == (verdict.status is report.ConditionStatus.TRUE)
    waits = verdict.reason in ("ReplicasStarting", "Unschedulable")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"generateName": f"{meta['name']}-", "namespace": meta["namespace"]},
        "eventTime": now.replace("Z", ".000000Z"),
        "type": "Normal" if good or waits else "Warning",
        "reason": verdict.reason,
        "action": "Reconcile",
        "note": verdict.message[:1000],
        "reportingController": f"{contract.API_GROUP}/operator",
        "reportingInstance": contract.FIELD_MANAGER,
        "regarding": {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
    }


def _context(live: Manifest, images: Images) -> Context:
    meta = live["metadata"]
    spec = InferenceServiceSpec.model_validate(live.get("spec", {}))
    return Context(meta["namespace"], meta["name"], meta["uid"], spec, images)


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
