"""One follower a service: scrape, build signals, decide, and queue the service where the reconciler has to act. I/O.

With traffic a round is made every two seconds. Without, and with nothing left to take away, the follower waits on the
routers for a request to arrive, so that an idle service costs next to nothing and a burst is seen at once. Specs come
from the watch: `Loop.service_changed` is called for each change of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.kinds import POD, Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.queue import WorkQueue
from phasewise_operator.render.context import Context, Images
from phasewise_operator.scaling.idle import LEAST_SECONDS, wait_for_request
from phasewise_operator.scaling.metrics import ScalingMetrics
from phasewise_operator.scaling.pace import Pace
from phasewise_operator.scaling.policy.data_quality import NO_SIGNAL
from phasewise_operator.scaling.policy.decide import Memory, decide
from phasewise_operator.scaling.pools import at_rest, pools_of, scrape_targets, targets_of
from phasewise_operator.scaling.scrape import ScrapeError, Scraper, pause_after
from phasewise_operator.scaling.signals.build import signals
from phasewise_operator.scaling.signals.evidence import Evidence
from phasewise_operator.scaling.signals.history import History, Scrape, ScrapeTarget
from phasewise_operator.scaling.signals.kv_evidence import NO_EVIDENCE, KvEvidence, kv_evidence
from phasewise_operator.scaling.types import (
    FIGURES_SECONDS,
    NO_RECOMMENDATION,
    PoolState,
    Recommendation,
    Signals,
    SizeDecision,
)
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 2.0
"""Between the beginnings of two rounds where there is traffic, or where a pool may have to shrink."""
REST_SECONDS: Final = 300.0
"""The longest time between two rounds of an idle service: only a request or another spec ends it earlier."""
PROOF_SECONDS: Final = 5.0
"""The same while pods wait for their proof that KV flows, or a path fails: routers see that end without a request."""
SILENT_SECONDS: Final = 300.0
"""Routers of which nothing could be read for so long are taken to prove nothing: a rollout must not wait for ever."""
STARTING_SECONDS: Final = 10.0
"""Between rounds while no router is ready: nothing can be decided, and the store says when one is."""


@dataclass(frozen=True)
class Deps:
    """What all followers share."""

    store: Store
    queue: WorkQueue[Key]
    images: Images
    metrics: ScalingMetrics
    scraper: Scraper


class Loop:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._pace = Pace(deps.metrics.lag)
        self._followers: dict[Key, tuple[_Follower, asyncio.Task[None]]] = {}
        self._running = False

    def recommendation(self, key: Key, uid: str) -> Recommendation:
        """The newest recommendation for a service; none for another service of the same name."""
        found = self._followers.get(key)
        return found[0].recommendation if found and found[0].uid == uid else NO_RECOMMENDATION

    def kv_evidence(self, key: Key, uid: str) -> KvEvidence:
        """What the routers of a service say of KV transfer; nothing for another service of the same name."""
        found = self._followers.get(key)
        return found[0].evidence if found and found[0].uid == uid else NO_EVIDENCE

    async def run(self) -> None:
        """Follow every service of the store, until cancelled."""
        async with self._deps.scraper:
            self._running = True
            try:
                for live in self._deps.store.services():
                    self.service_changed((live["metadata"]["namespace"], live["metadata"]["name"]))
                await asyncio.Event().wait()
            finally:
                self._running = False
                await asyncio.gather(*[self._drop(key) for key in list(self._followers)], return_exceptions=True)

    def service_changed(self, key: Key) -> None:
        """The store has something new of this service: begin to follow it, take its new spec, or end at once.

        Calls before run() do nothing: it begins with all services of the store.
        """
        if not self._running:
            return
        live = self._deps.store.service(key)
        if live is not None and "deletionTimestamp" in live["metadata"]:
            live = None
        # A service that was deleted and created again has another uid.
        if key in self._followers and (live is None or live["metadata"]["uid"] != self._followers[key][0].uid):
            self._drop(key)
        if live is None:
            return
        if key not in self._followers:
            follower = _Follower(self._deps, self._pace, key, live["metadata"]["uid"])
            self._followers[key] = follower, asyncio.create_task(follower.follow(), name=f"scaling {key}")
        self._followers[key][0].take_change(live)

    def _drop(self, key: Key) -> asyncio.Task[None]:
        _, task = self._followers.pop(key)
        task.cancel()
        self._deps.metrics.forget(*key)
        return task


class _Follower:
    """One service. What is kept between rounds can be lost: the next rounds measure it again."""

    def __init__(self, deps: Deps, pace: Pace, key: Key, uid: str) -> None:
        self._deps = deps
        self._pace = pace
        self._key = key
        self.uid = uid
        self.recommendation = NO_RECOMMENDATION
        self.evidence = NO_EVIDENCE
        self._began = time.monotonic()
        self._history = History()
        self._memory, self._against = Memory(), Evidence()
        self._scrape_pause = 0.0
        self._reported_at = 0.0
        self._roles: frozenset[str] = frozenset()
        self._expected: list[ScrapeTarget] = []
        self._generation: int | None = None
        self._unparsed: Manifest | None = None
        """The newest spec, until the next round has parsed it."""
        self._ctx: Context | None = None
        """None: the spec cannot be parsed; the reconciler reports it."""
        self._changed = asyncio.Event()

    def take_change(self, live: Manifest) -> None:
        """Another spec, parsed in the next round, or a pod more that is ready: the next round does not wait."""
        if live["metadata"]["generation"] != self._generation:
            self._generation, self._unparsed = live["metadata"]["generation"], live
            self._changed.set()
        elif self._ctx and not self._changed.is_set() and self._has_new_pod():
            self._changed.set()

    @property
    def _routers(self) -> list[ScrapeTarget]:
        return [target for target in self._expected if target.role == contract.ROUTER]

    def _has_new_pod(self) -> bool:
        """Whether requests may come to a router that is not waited on, or routers are to prove an engine."""
        known, routers = {target.uid for target in self._expected}, self._routers
        pods = [p for p in self._deps.store.children(self._key, POD) if p["metadata"]["uid"] not in known]
        asked = [p for p in pods if routers or p["metadata"]["labels"].get(contract.LABEL_ROLE) == contract.ROUTER]
        return bool(scrape_targets(Observed.of(asked, self.uid))[0])

    async def follow(self) -> None:
        due: float | None = None
        while True:
            async with self._pace.round(due):
                began = time.monotonic()
                idle = await self._try_round()
            if idle:
                await wait_for_request(self._deps.scraper, self._routers, self._history, self._changed, self._rest())
            pause = max(LEAST_SECONDS if idle else ROUND_SECONDS * self._pace.stretch, self._scrape_pause)
            due = max(began + pause, time.monotonic() + LEAST_SECONDS)
            await asyncio.sleep(due - time.monotonic())

    def _rest(self) -> float:
        """The longest time between two rounds without a request, in seconds."""
        if not self._routers:
            return STARTING_SECONDS
        return PROOF_SECONDS if self.evidence.awaits_proof(self._expected) else REST_SECONDS

    async def _try_round(self) -> bool:
        """Returns whether the next round may wait until a request arrives."""
        try:
            return await self._round()
        except Exception:
            # A defect in one service must not stop the others; and a recommendation from before it is out of date.
            log.exception("%s/%s: a scaling round failed", *self._key)
            self.recommendation = NO_RECOMMENDATION
            return False

    async def _round(self) -> bool:
        self._changed.clear()
        ctx = self._context()
        if ctx is None:
            self._expected = []
            return True
        status = (self._deps.store.service(self._key) or {}).get("status")
        observed = Observed.of(self._deps.store.children(self._key), self.uid, status=status)
        self._expected, draining = scrape_targets(observed)
        with self._deps.metrics.rounds.time():
            await self._scrape([*self._expected, *draining])
            attainment = ctx.spec.slo.attainment / 100
            measured = signals(self._history, self._expected, list(ctx.pools), attainment, time.monotonic())
            pools = pools_of(ctx, observed)
            before, known = self.recommendation, self.evidence
            patient = time.monotonic() - self._began < SILENT_SECONDS
            self.evidence = kv_evidence(self._history, self._expected, known, patient)
            self.recommendation = self._recommend(ctx, pools, measured)
        self._count(pools, before, self.recommendation)
        self._export(pools, measured)
        is_news = _actionable(before) != _actionable(self.recommendation) or known.judgement != self.evidence.judgement
        self._queue_if(is_news, measured)
        if not self._routers and not draining:
            return True
        sufficient = measured.routers.read == measured.routers.of and measured.load_window > 0
        sufficient = sufficient and all(d.sufficient for d in self.recommendation.decisions.values())
        return measured.quiet and sufficient and all(at_rest(p, _decides(ctx)) for p in pools)

    def _context(self) -> Context | None:
        if self._unparsed is not None:
            live, self._unparsed, self._ctx = self._unparsed, None, None
            with contextlib.suppress(ValidationError):
                self._ctx = Context.of(live, self._deps.images)
        return self._ctx

    def _export(self, pools: Sequence[PoolState], measured: Signals) -> None:
        roles = frozenset(p.role for p in pools)
        if not self._roles <= roles:
            self._deps.metrics.forget(*self._key)
        self._roles = roles
        self._deps.metrics.update(*self._key, pools, measured, self.recommendation.decisions)

    async def _scrape(self, targets: Sequence[ScrapeTarget]) -> None:
        results = await self._deps.scraper.scrape(targets)
        self._scrape_pause = pause_after(results.values())
        roles = {t.uid: t.role for t in targets}
        for uid, result in results.items():
            if isinstance(result, ScrapeError):
                self._deps.metrics.scrape_errors.labels(roles[uid], result.reason).inc()
        scrapes = {uid: result for uid, result in results.items() if isinstance(result, Scrape)}
        self._history = self._history.fold(targets, scrapes, time.monotonic())

    def _recommend(self, ctx: Context, pools: Sequence[PoolState], measured: Signals) -> Recommendation:
        failed = [name for name, pod in self.evidence.pods.items() if not pod.flows]
        against = self._against = self._against.fold(failed, measured.revisions, time.monotonic())
        decisions, scaling = dict[str, SizeDecision](), ctx.spec.scaling
        if not _decides(ctx):
            # Sizes that others decide meanwhile are not the sizes that this loop needed.
            self._memory = replace(self._memory, pools={})
        else:
            stabilization = scaling.scale_down_stabilization.seconds
            result = decide(
                time.monotonic(), targets_of(ctx), pools, measured, scaling.gpu_budget, stabilization, self._memory
            )
            self._memory = result.memory
            decisions = dict(result.decisions)
        return Recommendation(decisions, measured, ctx.generation, against.kv_fails, against.slower)

    def _count(self, pools: Sequence[PoolState], before: Recommendation, after: Recommendation) -> None:
        for pool in pools:
            decision, last = after.decisions.get(pool.role), before.decisions.get(pool.role)
            if decision is None or decision.desired == pool.desired or (last and last.desired == decision.desired):
                continue
            direction = "up" if decision.desired > pool.desired else "down"
            log.info("%s/%s: %s %d -> %d: %s", *self._key, pool.role, pool.desired, decision.desired, decision.message)
            self._deps.metrics.decisions.labels(*self._key, pool.role, direction, decision.reason).inc()

    def _queue_if(self, is_news: bool, measured: Signals) -> None:
        """Queue the service for the reconciler: at once for a new decision or another judgement of KV transfer, now and
        then for new figures."""
        now = time.monotonic()
        figures = not measured.quiet and now - self._reported_at >= FIGURES_SECONDS
        if figures or is_news:
            self._reported_at = now
            self._deps.queue.add(self._key)


def _decides(ctx: Context) -> bool:
    """The sizes are this loop's to decide."""
    return ctx.spec.scaling.mode is ScalingMode.AUTO and not ctx.spec.paused


def _actionable(r: Recommendation) -> object:
    """What the reconciler acts on at once: not figures, not why a size stays, and not that nothing is known yet. What
    was decided for another generation it did not act on."""
    known = {role: d for role, d in r.decisions.items() if d.reason != NO_SIGNAL}
    sizes = {role: (d.desired, d.sufficient, d.limit) for role, d in known.items()}
    generation = r.generation if known else 0
    return sizes, generation, set(r.kv_fails), set(r.slower)
