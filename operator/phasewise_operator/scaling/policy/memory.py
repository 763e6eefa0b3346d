"""All that the policy remembers between two calls. Pure values; imports `itl_law` and `state` only.

An operator that starts anew begins with Memory(): it loses no size (those are in the cluster), only the right to shrink
until it has watched for a whole stabilization, and what it had learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phasewise_operator.scaling.policy.itl_law import ItlLaw
from phasewise_operator.scaling.types import SloTargets

ENOUGH_LEGS = 5.0
"""Below five the mean of a skewed quantity is off by half as easily as not."""


@dataclass(frozen=True)
class Asked:
    """A size that was asked for, for the last time `until` then."""

    until: float
    size: int


@dataclass(frozen=True)
class Correction:
    """Replicas that measured latency has shown to be needed beyond the model's, at some load."""

    extra: int
    load: float
    at: float


@dataclass(frozen=True)
class PoolMemory:
    """Of one pool."""

    asked: tuple[Asked, ...] = ()
    """The highest sizes asked for in the stabilization time: sizes fall, times rise. Empty: nothing watched yet."""
    desired: int | None = None
    """The size last given."""
    settled_since: float | None = None
    """Since when all replicas of an unchanged size have been ready."""
    correction: Correction | None = None


@dataclass(frozen=True)
class Prompts:
    """What is known of prefill legs: sums over the last of them."""

    busy: float = 0.0
    """Busy seconds of replicas..."""
    legs: float = 0.0
    """...and the legs that they served."""
    taken: float = 0.0
    """Prefill legs..."""
    served: float = 0.0
    """...and the decode legs beside them: a request may go to decode at once."""
    after: float | None = None
    """Seconds from the end of prefill to the first token where decode is not congested."""
    most: float | None = None
    """Seconds that prompts were in the engine's batch, on average: their cost cannot be more."""

    @property
    def seconds(self) -> float | None:
        """Busy seconds of a replica a leg. Legs that clients gave up kept it busy, too, and are not counted."""
        if self.legs <= 0 or self.busy <= 0:
            return None
        return self.busy / self.legs if self.most is None else min(self.most, self.busy / self.legs)

    @property
    def share(self) -> float:
        """Requests that take a prefill leg; all of them while too few were seen."""
        return min(1.0, self.taken / self.served) if self.served >= ENOUGH_LEGS else 1.0

    @property
    def thin(self) -> bool:
        """Too few legs were seen for large steps."""
        return self.legs < ENOUGH_LEGS


@dataclass(frozen=True)
class Outputs:
    """What is known of decode legs: sums over the last of them."""

    tokens: float = 0.0
    legs: float = 0.0

    @property
    def length(self) -> float | None:
        """Output tokens a leg."""
        return self.tokens / self.legs if self.legs >= ENOUGH_LEGS else None


@dataclass(frozen=True)
class Room:
    """Streams that a decode pod lets in, seen when others had to wait: its batch or its KV cache sets the limit."""

    streams: float
    at: float


@dataclass(frozen=True)
class Memory:
    """Memory() is a fresh start."""

    at: float | None = None
    """The last time that signals could be used."""
    targets: SloTargets | None = None
    """Those that corrections were learned for..."""
    targets_since: float | None = None
    """...and since when; None: since the first call."""
    pools: Mapping[str, PoolMemory] = field(default_factory=dict[str, PoolMemory])
    prompts: Prompts = Prompts()
    law: ItlLaw = field(default_factory=ItlLaw)
    outputs: Outputs = Outputs()
    arrivals: float | None = None
    """Requests per second, without noise."""
    room: Room | None = None
    blocked: float = 0.0
    """Requests blocked at decode admission at the last call."""
