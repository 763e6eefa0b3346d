"""A simulated service for the policy: routers, prefill servers, KV transfer, decode pods, start-up, drain, and reports.

It steps through time in small steps from one seed. Prefill is first come, first served by pod; decode has
ITL = floor + slope * streams, a capacity in streams, and a queue before it. Parts of TTFT are measured where they
arise, so that the policy cannot blame a pool by a flaw of the simulator.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque

from tests.operator.scaling.policy.simulator_parts import Pod, Request, Row, Shape
from tests.operator.scaling.policy.simulator_signals import TICK, signals

from phasewise_operator.scaling.policy.decide import Memory, decide
from phasewise_operator.scaling.types import PoolState, SloTargets

STEP = 0.05


class Simulator:
    """Runs a shape against the policy."""

    def __init__(
        self,
        shape: Shape,
        targets: SloTargets,
        bounds: dict[str, tuple[int, int]],
        *,
        start: dict[str, int] | None = None,
        budget: int | None = None,
        stabilization: float = 60.0,
        seed: int = 1,
    ) -> None:
        self.shape, self.targets, self.bounds = shape, targets, bounds
        self.budget, self.stabilization = budget, stabilization
        self.random = random.Random(seed)
        self.now = 0.0
        self.names = itertools.count()
        self.pods: dict[str, list[Pod]] = {role: [] for role in bounds}
        self.desired = {role: (start or {}).get(role, lo) for role, (lo, _) in bounds.items()}
        for role, number in self.desired.items():
            for _ in range(number):
                pod = self._new(role)
                pod.ready = True
        self.router: deque[Request] = deque()
        self.moving: list[tuple[float, int, Request]] = []
        self.unfinished: set[Request] = set()
        self.arrived, self.due = 0, 0.0
        self.firsts: deque[tuple[float, Request]] = deque()
        self.done: deque[tuple[float, str, float]] = deque()
        """When, SLO result, ITL."""
        self.history: deque[tuple[float, int, dict[str, tuple[float, ...]]]] = deque()
        self.memory = Memory()
        self.rows: list[Row] = []
        self.results: list[tuple[float, bool]] = []
        """When a request came, and whether it met both targets."""

    # --- time ---------------------------------------------------------------------------------------------
    def run(self, seconds: float) -> list[Row]:
        """Ticks of the policy with the simulator's steps between them."""
        for _ in range(round(seconds / TICK)):
            for _ in range(round(TICK / STEP)):
                self._step()
            self._tick()
        return self.rows

    @property
    def judged(self) -> int:
        return len(self.results)

    def attainment(self, begin: float, end: float) -> float:
        """Of requests that came in that time; one that is late and has not ended counts as missed."""
        met = [good for at, good in self.results if begin <= at < end]
        late = sum(begin <= r.read < end and self.now - r.read > 60 for r in self.unfinished)
        return sum(met) / max(1, len(met) + late)

    def _step(self) -> None:
        self.now += STEP
        self._start_pods()
        for at in self._arrivals():
            self._arrive(at)
        while self.router and self._admit(self.router[0]):
            self.router.popleft()
        for pod in self.pods.get("prefill", []):
            self._serve(pod)
        while self.moving and self.moving[0][0] <= self.now and self.usable("decode"):
            at, _, request = heapq.heappop(self.moving)
            request.moved = at
            target = min(self.usable("decode"), key=lambda p: p.load)
            target.queue.append(request)
        for pod in self.pods["decode"]:
            self._decode(pod)
        for role, pods in self.pods.items():
            self.pods[role] = [p for p in pods if not (p.ending and p.load == 0)]

    def _arrivals(self) -> list[float]:
        """Poisson within the step, or evenly spaced."""
        if self.shape.regular:
            whole = math.floor(self.due + self.shape.rate(self.now) * STEP) - math.floor(self.due)
            self.due += self.shape.rate(self.now) * STEP
            return [self.now] * whole
        left, times = self.shape.rate(self.now) * STEP, list[float]()
        while left > 0 and (left := left - self.random.expovariate(1.0)) > 0:
            times.append(self.now - STEP * self.random.random())
        return sorted(times)

    # --- requests -----------------------------------------------------------------------------------------
    def _arrive(self, at: float) -> None:
        shape, vary = self.shape, 1 + self.random.uniform(-self.shape.noise, self.shape.noise)
        request = Request(
            at,
            (shape.prefill_floor + shape.prefill_per_token * shape.prompt) * vary,
            max(2.0, shape.output * vary),
            self.targets.ttft,
        )
        self.arrived += 1
        self.unfinished.add(request)
        self.router.append(request)

    def _admit(self, request: Request) -> bool:
        prefills, decodes = self.usable("prefill"), self.usable("decode")
        if not decodes or ("prefill" in self.pods and not prefills):
            return False
        # Within the step it came in, a request that finds a pod has not waited.
        request.admitted = request.read if self.now - request.read <= STEP else self.now
        if "prefill" in self.pods:
            request.phase = "prefill"
            pod = min(prefills, key=lambda p: p.load)
            pod.queue.append(request)
        else:
            request.phase = "decode"
            request.began = request.computed = request.moved = request.admitted
            min(decodes, key=lambda p: p.load).queue.append(request)
        return True

    def _serve(self, pod: Pod) -> None:
        load = pod.load
        pod.busy += STEP * (load > 0)
        pod.inflight += STEP * load
        while True:
            if pod.serving and pod.until <= self.now:
                request, pod.serving = pod.serving, None
                request.computed, request.phase = pod.until, "decode"
                pod.requests += 1
                heapq.heappush(self.moving, (pod.until + self.shape.transfer, next(self.names), request))
            if pod.serving or not pod.queue:
                return
            pod.serving = pod.queue.popleft()
            pod.serving.began = max(pod.until, pod.serving.admitted)
            pod.until = pod.serving.began + pod.serving.work

    def _decode(self, pod: Pod) -> None:
        load = pod.load
        pod.busy += STEP * (load > 0)
        pod.inflight += STEP * load
        limit = min(self.shape.capacity, math.floor(1 / self.shape.kv)) if self.shape.kv else self.shape.capacity
        entered: list[Request] = []
        while pod.queue and len(pod.streams) < limit:
            request = pod.queue.popleft()
            request.entered = request.moved if self.now - request.moved <= STEP else self.now
            request.goal = pod.steps + request.output
            entered.append(request)
            heapq.heappush(pod.streams, (request.goal, next(self.names), request))
        if not pod.streams:
            return
        itl = self.shape.itl_floor + self.shape.itl_slope * len(pod.streams)
        made = STEP / itl
        pod.tokens += made * len(pod.streams)
        pod.gaps += STEP * len(pod.streams)
        pod.steps += made
        for request in entered:
            request.first = request.entered + itl + (0 if "prefill" in self.pods else request.work)
            self.firsts.append((self.now, request))
        while pod.streams and pod.streams[0][0] <= pod.steps:
            goal, _, request = heapq.heappop(pod.streams)
            self._finish(pod, request, self.now - (pod.steps - goal) * itl)

    def _finish(self, pod: Pod, request: Request, at: float) -> None:
        pod.requests += 1
        self.unfinished.discard(request)
        assert request.first is not None
        ttft, itl = request.first - request.read, (at - request.entered) / request.output
        late, slow = ttft > self.targets.ttft, itl > self.targets.itl
        result = ("met", "ttft_missed", "itl_missed", "both_missed")[late + 2 * slow]
        self.done.append((self.now, result, itl))
        self.results.append((request.read, result == "met"))

    # --- pods ---------------------------------------------------------------------------------------------
    def _new(self, role: str) -> Pod:
        pod = Pod(f"{role}-{next(self.names)}", self.now)
        self.pods[role].append(pod)
        return pod

    def _live(self, role: str) -> list[Pod]:
        return [p for p in self.pods[role] if not p.ending]

    def usable(self, role: str) -> list[Pod]:
        return [p for p in self.pods.get(role, []) if p.ready and not p.ending]

    def _start_pods(self) -> None:
        for role, pods in self.pods.items():
            for pod in pods[: self.shape.nodes]:
                pod.ready = pod.ready or self.now - pod.born >= self.shape.startup
            assert len(self._live(role)) == self.desired[role]

    def _resize(self, role: str, desired: int) -> None:
        live = self._live(role)
        for _ in range(desired - len(live)):
            self._new(role)
        for pod in sorted(live, key=lambda p: (p.ready, p.load))[: max(0, len(live) - desired)]:
            pod.ending = True
        self.desired[role] = desired

    # --- the policy ---------------------------------------------------------------------------------------
    def _tick(self) -> None:
        seen = signals(self)
        result = decide(self.now, self.targets, self.state(), seen, self.budget, self.stabilization, self.memory)
        self.memory = result.memory
        for role, decision in result.decisions.items():
            self._resize(role, decision.desired)
        self.rows.append(
            Row(
                at=self.now,
                desired=dict(self.desired),
                ready={r: len(self.usable(r)) for r in self.pods},
                decisions=dict(result.decisions),
                rate=seen.arrivals,
                queued=seen.queued,
                attainment=seen.outcomes.attainment,
                gpus=sum(len(pods) for pods in self.pods.values()) * self.shape.gpus,
            )
        )

    def state(self) -> list[PoolState]:
        pools: list[PoolState] = []
        for role, (lo, hi) in self.bounds.items():
            homeless = sum(1 for p in self.pods[role][self.shape.nodes :] if not p.ready)
            ending = len(self.pods[role]) - len(self._live(role))
            pools.append(
                PoolState(
                    role=role,
                    min=lo,
                    max=hi,
                    desired=self.desired[role],
                    ready=len(self.usable(role)),
                    unschedulable=homeless,
                    gpus=self.shape.gpus,
                    gpus_beside=ending * self.shape.gpus,
                )
            )
        return pools
