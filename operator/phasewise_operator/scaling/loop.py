"""One follower a service: scrape, make signals, decide, and tell the reconciler where something is new. I/O.

With traffic a round is made every two seconds. Without, and with nothing left to take away, the follower waits on the
routers for a request to arrive, so that an idle service costs next to nothing and a burst is seen at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from phasewise_operator.api.spec import ScalingMode
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed, PodView
from phasewise_operator.queue import WorkQueue
from phasewise_operator.render.context import Context, Images
from phasewise_operator.scaling.metrics import ScalingMetrics
from phasewise_operator.scaling.policy.decide import Memory, decide
from phasewise_operator.scaling.pools import pools_of, targets_of
from phasewise_operator.scaling.scrape import ScrapeError, Scraper
from phasewise_operator.scaling.signals.build import kv_transfers, signals
from phasewise_operator.scaling.signals.history import History, Scrape, ScrapeTarget
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
IDLE_SECONDS: Final = 60.0
"""The longest single wait for a request on an idle service."""
REST_SECONDS: Final = 300.0
"""How long nothing but a request, or another spec, makes an idle service be looked at."""
LEAST_SECONDS: Final = 0.5
"""Between two rounds in any case."""
BLIND_SECONDS: Final = 3.0
"""Between rounds where there is no router to wait on."""
MATCH_SECONDS: Final = 0.5


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
        self._followers: dict[Key, tuple[_Follower, asyncio.Task[None]]] = {}

    def recommendation(self, key: Key, uid: str) -> Recommendation:
        """What was last made of a service; nothing of one that is another of the same name."""
        found = self._followers.get(key)
        return found[0].recommendation if found and found[0].uid == uid else NO_RECOMMENDATION

    async def run(self) -> None:
        """Follow every service that there is, until cancelled."""
        async with self._deps.scraper:
            try:
                while True:
                    self._match()
                    await asyncio.sleep(MATCH_SECONDS)
            finally:
                tasks = [self._drop(key) for key in list(self._followers)]
                await asyncio.gather(*tasks, return_exceptions=True)

    def _match(self) -> None:
        """A service that was deleted and made again is another one."""
        metas = [live["metadata"] for live in self._deps.store.services()]
        there: dict[Key, Manifest] = {(meta["namespace"], meta["name"]): meta for meta in metas}
        for key, (follower, _) in list(self._followers.items()):
            if key not in there or there[key]["uid"] != follower.uid:
                self._drop(key)
        for key, meta in there.items():
            if key not in self._followers:
                follower = _Follower(self._deps, key, meta["uid"])
                self._followers[key] = follower, asyncio.create_task(follower.follow(), name=f"scaling {key}")
            self._followers[key][0].wake(meta["generation"])

    def _drop(self, key: Key) -> asyncio.Task[None]:
        _, task = self._followers.pop(key)
        task.cancel()
        self._deps.metrics.forget(*key)
        return task


class _Follower:
    """One service. What is kept between rounds can be lost: the next rounds make it again."""

    def __init__(self, deps: Deps, key: Key, uid: str) -> None:
        self._deps = deps
        self._key = key
        self.uid = uid
        self.recommendation = NO_RECOMMENDATION
        self._history = History()
        self._memory = Memory()
        self._told = 0.0
        self._roles: frozenset[str] = frozenset()
        self._routers: list[ScrapeTarget] = []
        self._generation = 0
        self._changed = asyncio.Event()

    def wake(self, generation: int) -> None:
        """Another spec is looked at without waiting for a request."""
        if generation != self._generation:
            self._generation = generation
            self._changed.set()

    async def follow(self) -> None:
        while True:
            began = time.monotonic()
            try:
                idle = await self._round()
            except Exception:
                # A defect in one service's round must not end the rounds of the others, nor what it said last stand.
                log.exception("%s/%s: a scaling round failed", *self._key)
                self.recommendation = NO_RECOMMENDATION
                idle = False
            if idle:
                await self._until_stirred()
            pause = LEAST_SECONDS if idle else ROUND_SECONDS
            await asyncio.sleep(max(LEAST_SECONDS, began + pause - time.monotonic()))

    async def _round(self) -> bool:
        """Returns whether there is nothing to look at until a request arrives."""
        self._changed.clear()
        ctx = self._context()
        if ctx is None:
            self._routers = []
            return True
        observed = Observed.of(self._deps.store.children(self._key), self.uid)
        expected, draining = _targets(observed)
        self._routers = [t for t in expected if t.role == contract.ROUTER]
        with self._deps.metrics.rounds.time():
            await self._read([*expected, *draining])
            attainment = ctx.spec.slo.attainment / 100
            seen = signals(self._history, expected, list(ctx.pools), attainment, time.monotonic())
            pools = pools_of(ctx, observed)
            before, self.recommendation = self.recommendation, self._recommend(ctx, pools, seen)
        self._count(pools, before, self.recommendation)
        self._show(pools, seen)
        self._tell(before, seen)
        known = seen.routers.read == seen.routers.of and seen.load_window > 0
        known = known and all(v.known for v in self.recommendation.decisions.values())
        return seen.quiet and known and all(_at_rest(p, _decides(ctx)) for p in pools)

    def _show(self, pools: Sequence[PoolState], seen: Signals) -> None:
        roles = frozenset(p.role for p in pools)
        if not self._roles <= roles:
            self._deps.metrics.forget(*self._key)
        self._roles = roles
        self._deps.metrics.show(*self._key, pools, seen, self.recommendation.decisions)

    async def _read(self, targets: Sequence[ScrapeTarget]) -> None:
        answers = await self._deps.scraper.scrape(targets)
        roles = {t.uid: t.role for t in targets}
        for uid, answer in answers.items():
            if isinstance(answer, ScrapeError):
                self._deps.metrics.scrape_errors.labels(roles[uid], answer.reason).inc()
        reads = {uid: answer for uid, answer in answers.items() if isinstance(answer, Scrape)}
        self._history = self._history.fold(targets, reads, time.monotonic())

    def _recommend(self, ctx: Context, pools: Sequence[PoolState], seen: Signals) -> Recommendation:
        kv = kv_transfers(self._history)
        decisions: dict[str, SizeDecision] = {}
        scaling = ctx.spec.scaling
        if not _decides(ctx):
            # What others decide meanwhile is not what this loop asked for.
            self._memory = replace(self._memory, pools={})
        else:
            stabilization = scaling.scale_down_stabilization.seconds
            result = decide(
                time.monotonic(), targets_of(ctx), pools, seen, scaling.gpu_budget, stabilization, self._memory
            )
            self._memory = result.memory
            decisions = dict(result.decisions)
        return Recommendation(decisions, seen, ctx.generation, kv.good, kv.failed)

    def _count(self, pools: Sequence[PoolState], before: Recommendation, after: Recommendation) -> None:
        for pool in pools:
            decision, last = after.decisions.get(pool.role), before.decisions.get(pool.role)
            if decision is None or decision.desired == pool.desired or (last and last.desired == decision.desired):
                continue
            direction = "up" if decision.desired > pool.desired else "down"
            log.info("%s/%s: %s %d -> %d: %s", *self._key, pool.role, pool.desired, decision.desired, decision.message)
            labels = (*self._key, pool.role, direction, decision.reason)
            self._deps.metrics.decisions.labels(*labels).inc()

    def _tell(self, before: Recommendation, seen: Signals) -> None:
        """Wake the reconciler: at once for what is new, now and then for figures. What fails is tried again there."""
        now = time.monotonic()
        figures = not seen.quiet and now - self._told >= FIGURES_SECONDS
        if figures or _gist(before) != _gist(self.recommendation):
            self._told = now
            self._deps.queue.add(self._key)

    def _context(self) -> Context | None:
        live = self._deps.store.service(self._key)
        if live is None:
            return None
        try:
            return Context.of(live, self._deps.images)
        except ValidationError:
            return None  # the reconciler says so

    # --- without traffic -------------------------------------------------------------------------------------
    async def _until_stirred(self) -> None:
        """Until a router has read another request, the spec is another, or it is time to look again."""
        seconds = REST_SECONDS if self._routers else BLIND_SECONDS
        waits = [asyncio.create_task(self._stirred(router)) for router in self._routers]
        waits.append(asyncio.create_task(self._spec_changed()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _stirred(self, router: ScrapeTarget) -> None:
        newest = self._history.newest.get(router.uid)
        since = int(sum(newest.read.page.counters.get(contract.METRIC_ARRIVALS, {}).values())) if newest else 0
        answer: int | None = since
        while answer == since:
            began = time.monotonic()
            answer = await self._deps.scraper.wait_activity(router.address, since, IDLE_SECONDS)
            await asyncio.sleep(max(0.0, began + LEAST_SECONDS - time.monotonic()) if answer == since else 0)
        if answer is None:
            await asyncio.sleep(BLIND_SECONDS)

    async def _spec_changed(self) -> None:
        await self._changed.wait()


def _targets(observed: Observed) -> tuple[list[ScrapeTarget], list[ScrapeTarget]]:
    """Pods that should answer: ready ones that stay. And routers on their way out: they still have requests in hand."""
    staying = [p for p in observed.pods if p.address and p.ready and not p.deleting]
    draining = [p for p in observed.pods if p.address and p.deleting and p.role == contract.ROUTER]
    expected = [p for p in staying if p.role in (*contract.ENGINE_ROLES, contract.ROUTER)]
    return [_target(p) for p in expected], [_target(p) for p in draining]


def _target(pod: PodView) -> ScrapeTarget:
    return ScrapeTarget(pod.role, pod.name, pod.uid, pod.address)


def _decides(ctx: Context) -> bool:
    """The sizes are this loop's to decide."""
    return ctx.spec.scaling.mode is ScalingMode.AUTO and not ctx.spec.paused


def _at_rest(pool: PoolState, auto: bool) -> bool:
    """As it was asked for, and as small as it may be."""
    return pool.ready >= pool.desired and (not auto or pool.desired == pool.min)


def _gist(recommendation: Recommendation) -> object:
    """What is worth waking the reconciler for: not figures, and not why a size stays as it is."""
    held = {role: (v.desired, v.known, v.limit) for role, v in recommendation.decisions.items()}
    return held, recommendation.kv_good, recommendation.kv_failed
