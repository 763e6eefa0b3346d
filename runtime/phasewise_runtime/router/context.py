"""The dependencies that all requests share, made by server."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from phasewise_runtime.router.activity import Activity
from phasewise_runtime.router.engine_client import EngineClient
from phasewise_runtime.router.frames import Frames
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.model_names import served_names
from phasewise_runtime.router.pending import PendingRequests
from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.settings import Settings


@dataclass(slots=True)
class RouterContext:
    settings: Settings
    pod_registry: PodRegistry
    engine_client: EngineClient
    metrics: Metrics
    pending: PendingRequests = field(default_factory=PendingRequests)
    activity: Activity = field(default_factory=Activity)
    frames: Frames = field(default_factory=Frames)
    round_robin: itertools.count[int] = field(default_factory=itertools.count)

    def models(self) -> tuple[str, ...]:
        """Names that clients may ask for; that of the spec first."""
        return served_names(self.settings.model_name, self.pod_registry.models)
