"""The values that signals builds and policy reads, for one service at one moment. Pure.

All durations are seconds, all rates per second. Unknown is None, never zero; every sample says how much it covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Coverage:
    """How many of the pods that should have answered did: ready ones that are not on their way out."""

    read: int
    of: int

    @property
    def share(self) -> float:
        """1 where there is nobody to ask."""
        return self.read / self.of if self.of else 1.0


@dataclass(frozen=True)
class PodLoad:
    """One engine pod. What the routers saw of it is summed over all routers."""

    concurrency: float | None = None
    """Mean number of requests in flight over the load window, as the routers count them."""
    busy: float | None = None
    """Share of the load window with at least one request in flight."""
    requests: float = 0.0
    """Requests answered in the load window."""
    running: float | None = None
    """Now, as the engine says."""
    waiting: float | None = None
    """Now, in the engine's queue, whatever for."""
    blocked: float | None = None
    """Now, those of `waiting` that wait for capacity in batch or KV cache: decode admission."""
    kv_usage: float | None = None
    """Share of the KV cache in use now."""
    itl: float | None = None
    """Mean gap between tokens over the load window, as the engine says; None where it made none."""
    tokens: float = 0.0
    """Output tokens in the load window."""


@dataclass(frozen=True)
class PoolSignals:
    coverage: Coverage
    pods: Mapping[str, PodLoad] = field(default_factory=dict[str, PodLoad])
    """By pod name: those that answered."""


@dataclass(frozen=True)
class Outcomes:
    """Requests judged in the SLO window. `failed`: those that got no complete answer; they count as missed."""

    met: float = 0.0
    ttft_missed: float = 0.0
    itl_missed: float = 0.0
    both_missed: float = 0.0
    failed: float = 0.0

    @property
    def judged(self) -> float:
        return self.met + self.ttft_missed + self.itl_missed + self.both_missed + self.failed

    @property
    def attainment(self) -> float | None:
        """Share that met both targets; None where nothing was judged."""
        return self.met / self.judged if self.judged else None


@dataclass(frozen=True)
class TtftParts:
    """Mean seconds of each part of TTFT over the SLO window; None where nothing was measured.

    | part         | from                                                         | belongs to               |
    |--------------|--------------------------------------------------------------|--------------------------|
    | router_queue | router: read to admitted                                     | the pool it waits for    |
    | prefill_queue| prefill engines: request_queue_time                          | prefill                  |
    | prefill      | prefill engines: request_prefill_time (with batch-mates)     | prefill                  |
    | transfer     | decode engines: nixl_xfer_time                               | neither                  |
    | admission    | decode engines: request_queue_time, less transfer            | decode                   |
    | first_token  | decode engines: request_prefill_time (the first step)        | decode                   |
    """

    router_queue: float | None = None
    prefill_queue: float | None = None
    prefill: float | None = None
    transfer: float | None = None
    admission: float | None = None
    first_token: float | None = None


@dataclass(frozen=True)
class Latency:
    """Of the requests in the SLO window, as clients saw them. `at_attainment`: the quantile that the target is for."""

    count: float
    mean: float
    p50: float
    p95: float
    at_attainment: float


@dataclass(frozen=True)
class Signals:
    at: float
    """When the newest of it was read, on the clock that `now` is on."""
    load_window: float
    """Seconds that rates and loads cover; shorter than the window while there is little history, 0 with one scrape."""
    slo_window: float
    routers: Coverage
    pools: Mapping[str, PoolSignals]
    """By role; no prefill where decode does both phases."""
    arrivals: float = 0.0
    """Requests per second that the routers read, over the load window."""
    active: float = 0.0
    """Requests in flight now: admitted and not ended."""
    queued: float = 0.0
    """Requests that wait in the routers now for a pod or a place."""
    awaiting: Mapping[str, float] = field(default_factory=dict[str, float])
    """Requests without a first token now, by phase: queue, prefill, decode."""
    overdue: Mapping[str, float] = field(default_factory=dict[str, float])
    """Those of `awaiting` that have missed the TTFT target already."""
    outcomes: Outcomes = Outcomes()
    revisions: Mapping[tuple[str, str], Outcomes] = field(default_factory=dict[tuple[str, str], Outcomes])
    """Outcomes by role and revision of the pods that served."""
    parts: TtftParts = TtftParts()
    ttft: Latency | None = None
    itl: Latency | None = None

    @property
    def quiet(self) -> bool:
        """No traffic in the load window and nothing in flight."""
        return self.arrivals == 0 and self.active == 0 and self.queued == 0


@dataclass(frozen=True)
class SloTargets:
    ttft: float
    itl: float
    attainment: float
    """Share of requests that must meet both, such as 0.95."""


@dataclass(frozen=True)
class PoolState:
    """One pool as the cluster has it, and its bounds."""

    role: str
    min: int
    max: int
    desired: int
    """Replicas that the pool was last given: the size that is to be decided on."""
    ready: int
    """Ready pods that are not on their way out, of all revisions."""
    unschedulable: int = 0
    """Pods for which the scheduler finds no node."""
    gpus: int = 0
    """GPUs a replica."""
    batch: int = 0
    """Requests that an engine runs at once at most; 0: not known."""
    gpus_beside: int = 0
    """GPUs held by pods that `desired` does not count: terminating ones, and those of other revisions."""


AT_MAXIMUM: Final = "AtMaximum"
AT_MINIMUM: Final = "AtMinimum"
GPU_BUDGET: Final = "GpuBudget"
NO_NODE: Final = "Unschedulable"
LIMITS: Final = (AT_MAXIMUM, AT_MINIMUM, GPU_BUDGET, NO_NODE)


@dataclass(frozen=True)
class SizeDecision:
    """Why a pool has the size it is given. The function that decides returns it; status, Events and metrics show it."""

    desired: int
    reason: str
    """CamelCase, one of policy.reasons.REASONS, or the reconciler's own where the loop does not decide."""
    message: str
    """For people: the figures that decided, and what it would take to change it."""
    limit: str = ""
    """What keeps the pool from the size it needs: one of LIMITS; empty: nothing."""
    sufficient: bool = True
    """False: held, because the data do not suffice to decide."""
    bound: str = ""
    """The bound that moved a size which is held, in words; empty: none did."""
    missed: bool = False
    """The pool's target is missed: where the budget is lowered the other gives first."""


@dataclass(frozen=True)
class Recommendation:
    """The newest result of the loop for a service: the reconciler applies and reports it."""

    decisions: Mapping[str, SizeDecision] = field(default_factory=dict[str, SizeDecision])
    """By role; empty until there was a first round."""
    signals: Signals | None = None
    generation: int = 0
    """metadata.generation that the decisions are for: those for another spec are not acted on."""
    kv_fails: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pods whose KV transfer has failed for a while, and how: by name."""
    slower: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Revisions that have met their latency targets much less often than another of the pool for a while, with the
    figures: by role and revision."""


FIGURES_SECONDS: Final = 30.0
"""How often new figures without a new decision are reported, and are worth a write of the status."""
NO_RECOMMENDATION: Final = Recommendation()
"""Before the first round."""
