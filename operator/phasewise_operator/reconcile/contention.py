"""A damper: a child that somebody else overwrites again and again is left as it is for a while, and its status says so.

Two controllers that each repair what the other writes keep the API server busy without end, and each of their turns may
restart pods. An identical apply that is needed more than ten times a minute is no repair any more. I/O: one read of the
child when that is found, since the store does not keep the fields of others.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from phasewise_operator.kinds import Manifest, kind_of
from phasewise_operator.kube import Kube
from phasewise_operator.observed import Failure
from phasewise_operator.reconcile.conditions import Reason
from phasewise_runtime import contract

log = logging.getLogger(__name__)
APPLIES = 10
WINDOW_SECONDS = 60.0
"""More identical applies of a child than APPLIES in this time are a contention. An edit by hand is repaired at once."""
FIRST_PAUSE = 60.0
LONGEST_PAUSE = 960.0
"""The pause doubles each time that the child is overwritten again after it: at 16 minutes it costs nothing."""
REMEMBERED = 10_000
"""Children whose applies are counted, of the most recent ones: some 1,000 services."""


@dataclass
class _Applies:
    """Of one child with one content."""

    content: int
    times: list[float] = field(default_factory=list[float])
    """When it was applied, within the window and since it was last held back."""
    held_until: float = -math.inf
    pause: float = FIRST_PAUSE
    failure: Failure | None = None
    """Set since the child was contended, until it has stayed as it is for a window."""


class Contention:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._children: OrderedDict[tuple[str, str, str], _Applies] = OrderedDict()

    def held_back(self, intent: Manifest) -> Failure | None:
        """Why a child is left as it is now; None: it is not."""
        known = self._children.get(_ref(intent))
        held = known is not None and self._clock() < known.held_until and known.content == _content(intent)
        return known.failure if known is not None and held else None

    async def check(self, kube: Kube, intent: Manifest) -> Failure | None:
        """Call before each apply of a child. None: apply it."""
        now, applies = self._clock(), self._applies(intent)
        if now < applies.held_until:
            return applies.failure
        if applies.failure and applies.times and now - applies.times[-1] >= WINDOW_SECONDS:
            applies.failure, applies.pause = None, FIRST_PAUSE
        applies.times = [t for t in applies.times if now - t < WINDOW_SECONDS]
        if len(applies.times) < (1 if applies.failure else APPLIES):
            return None
        if applies.failure:
            applies.pause = min(2 * applies.pause, LONGEST_PAUSE)
        applies.held_until, applies.times = now + applies.pause, []
        applies.failure = await _contended(kube, intent, applies.pause)
        return applies.failure

    def applied(self, intent: Manifest) -> None:
        """Call after each. What failed, or waits for another object to go, is not counted: nobody overwrote it."""
        self._applies(intent).times.append(self._clock())

    def _applies(self, intent: Manifest) -> _Applies:
        """Anew where what is to be applied has changed: somebody acted."""
        ref, content = _ref(intent), _content(intent)
        known = self._children.get(ref)
        if known is None or known.content != content:
            known = self._children[ref] = _Applies(content)
        self._children.move_to_end(ref)
        if len(self._children) > REMEMBERED:
            self._children.popitem(last=False)
        return known


def _ref(intent: Manifest) -> tuple[str, str, str]:
    return (intent["kind"], intent["metadata"]["namespace"], intent["metadata"]["name"])


def _content(intent: Manifest) -> int:
    return hash(json.dumps(intent, sort_keys=True))


async def _contended(kube: Kube, intent: Manifest, pause: float) -> Failure:
    kind, meta = kind_of(intent), intent["metadata"]
    live = await kube.get(kind, meta["namespace"], meta["name"])
    who = f"{other_writer(live)} overwrites" if live else "somebody deletes"
    message = (
        f"{who} it each time that it is applied. It is left as it is for {pause / 60:.0f} min; "
        "see to it that one alone writes it"
    )
    log.warning("%s %s/%s: %s", kind.name, meta["namespace"], meta["name"], message)
    return Failure(kind.name, meta["name"], Reason.CONTENDED, message, refused=True)


def other_writer(live: Manifest) -> str:
    """Who wrote an object's fields last, beside this operator, by its managedFields; statuses are nobody's quarrel."""
    entries = [
        entry
        for entry in live["metadata"].get("managedFields", [])
        if entry.get("manager") != contract.FIELD_MANAGER and entry.get("subresource") != "status"
    ]
    if not entries:
        return f"another operator of Phasewise (field manager {contract.FIELD_MANAGER})"
    newest = max(entries, key=lambda entry: str(entry.get("time", "")))
    return f"field manager {newest.get('manager')}"
