"""All that the policy remembers between two calls. Pure values.

An operator that starts anew begins with Memory(): it loses no size (those are in the cluster), only the right to shrink
until it has watched for a full stabilization, and what it had learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phasewise_operator.scaling.policy.decode import Outputs, StreamCapacity
from phasewise_operator.scaling.policy.itl_law import ItlLaw
from phasewise_operator.scaling.policy.prefill import Prompts
from phasewise_operator.scaling.policy.stabilization import PastNeed
from phasewise_operator.scaling.types import SloTargets


@dataclass(frozen=True)
class Correction:
    """Replicas that measured latency has shown to be needed beyond the model's, at some load."""

    extra: int
    load: float
    at: float


@dataclass(frozen=True)
class PoolMemory:
    """Of one pool."""

    past_needs: tuple[PastNeed, ...] = ()
    """The highest needs of the stabilization time: replicas fall, times rise. Empty: nothing watched yet."""
    desired: int | None = None
    """The size last given."""
    settled_since: float | None = None
    """Since when all replicas of an unchanged size have been ready."""
    correction: Correction | None = None


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
    prompts: Prompts = field(default_factory=Prompts)
    law: ItlLaw = field(default_factory=ItlLaw)
    outputs: Outputs = field(default_factory=Outputs)
    arrivals: float | None = None
    """Requests per second, without noise."""
    capacity: StreamCapacity | None = None
    blocked: float = 0.0
    """Requests blocked at decode admission at the last call."""
