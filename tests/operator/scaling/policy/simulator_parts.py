"""The values of the simulator: load shapes, requests, pods, and the row that a tick leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from phasewise_operator.scaling.types import SizeDecision


@dataclass
class Shape:
    """The requests that come, and the machines that serve them."""

    rate: Callable[[float], float]
    """Requests per second at a time."""
    prompt: int = 1000
    output: int = 100
    prefill_floor: float = 0.02
    prefill_per_token: float = 0.0005
    transfer: float = 0.02
    itl_floor: float = 0.01
    itl_slope: float = 0.001
    capacity: int = 1000
    """Streams that a decode pod lets in."""
    kv: float = 0.0
    """Share of a decode pod's KV cache that a stream takes."""
    startup: float = 20.0
    nodes: int = 1000
    """Pods of each pool that find a node."""
    gpus: int = 0
    unreadable: Callable[[float, str], float] = lambda _now, _role: 0.0
    """Share of a pool's pods that cannot be read."""
    regular: bool = False
    """Arrivals at even distances, not by chance."""
    noise: float = 0.1
    """Of the work of a prompt and of the length of an output."""


@dataclass(eq=False)
class Request:
    read: float
    work: float
    output: float
    ttft_target: float
    phase: str = "queue"
    admitted: float = 0.0
    began: float = 0.0
    computed: float = 0.0
    moved: float = 0.0
    entered: float = 0.0
    first: float | None = None
    goal: float = 0.0


@dataclass(eq=False)
class Pod:
    name: str
    born: float
    ready: bool = False
    ending: bool = False
    busy: float = 0.0
    inflight: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0
    gaps: float = 0.0
    """Sum of the gaps between tokens."""
    queue: deque[Request] = field(default_factory=deque)
    serving: Request | None = None
    until: float = 0.0
    streams: list[tuple[float, int, Request]] = field(default_factory=list)
    steps: float = 0.0
    """Tokens that a stream which was here from the start would have."""

    @property
    def load(self) -> int:
        return len(self.queue) + len(self.streams) + (self.serving is not None)

    def counters(self) -> tuple[float, ...]:
        return self.busy, self.inflight, self.requests, self.tokens, self.gaps


@dataclass(frozen=True)
class Row:
    """One tick, for tests and for people."""

    at: float
    desired: dict[str, int]
    ready: dict[str, int]
    decisions: dict[str, SizeDecision]
    rate: float
    queued: float
    attainment: float | None
    gpus: int
    """Held by all pods, those that end among them."""

    def __str__(self) -> str:
        sizes = "  ".join(
            f"{r} {self.ready[r]:>2}/{self.desired[r]:<2} {v.reason:<16}" for r, v in self.decisions.items()
        )
        met = "-" if self.attainment is None else f"{self.attainment:.0%}"
        return f"{self.at:6.0f} s {self.rate:5.1f}/s {sizes} queued {self.queued:<4.0f} met {met}"
