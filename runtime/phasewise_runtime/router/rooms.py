"""What all requests share, put together by server."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from phasewise_runtime.router.activity import Activity
from phasewise_runtime.router.fleet import Fleet
from phasewise_runtime.router.frames import Frames
from phasewise_runtime.router.legs import Legs
from phasewise_runtime.router.metrics import Metrics
from phasewise_runtime.router.settings import Settings
from phasewise_runtime.router.waiting import WaitingRoom


@dataclass(slots=True)
class Rooms:
    settings: Settings
    fleet: Fleet
    legs: Legs
    metrics: Metrics
    waiting: WaitingRoom = field(default_factory=WaitingRoom)
    activity: Activity = field(default_factory=Activity)
    frames: Frames = field(default_factory=Frames)
    spin: itertools.count[int] = field(default_factory=itertools.count)
