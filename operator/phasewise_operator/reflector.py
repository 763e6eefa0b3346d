"""Keeps the store's copies of one kind as the API server has them: list, then watch, for ever. I/O.

The algorithm is client-go's reflector (https://pkg.go.dev/k8s.io/client-go/tools/cache#Reflector): a list in pages, a
watch from the list's version, bookmarks to keep that version fresh, and a list again where the version is forgotten
(410). A list shows deletions that no watch did, so nothing is listed by the clock. No error ends it.

Our own, since no library has one that fits: kubernetes.aio's Watch neither lists nor pages, keeps generated models and
knows no silent stream; kr8s and lightkube have a client of their own and no reflector; Kopf's costs 2.5 ms CPU an
event, keeps whole objects, reports no deletions after an interruption, and ends for good at a 403.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from phasewise_operator.kinds import POOL_SCALER, Kind
from phasewise_operator.kube import PAGE, Kube
from phasewise_operator.kube_errors import ExpiredError, KubeError, SilentError
from phasewise_operator.nodes import Nodes
from phasewise_operator.store import Key, Store

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 300.0
"""The API server ends a watch after at least so long; each takes up to twice as long, so that not all end at once."""
SILENT_SECONDS: Final = 120.0
"""The API server sends a bookmark about each minute: a stream that says nothing for so long may be dead."""
SHORT_SECONDS: Final = 1.0
"""A stream that ends sooner, and showed nothing, is counted as a failure."""
FIRST_BACKOFF: Final = 0.5
LONGEST_BACKOFF: Final = 30.0
REFUSALS: Final = (401, 403, 404)

CountError = Callable[[str, str, str], None]
"""Counts an error by kind, namespace (empty: all) and reason."""
Listener = Callable[[Key], None]
"""Is called with the key of each service of which an object changed; must return at once."""


@dataclass
class Reflector:
    kube: Kube
    store: Store | Nodes
    kind: Kind
    namespace: str | None
    """None: all namespaces."""
    selector: Mapping[str, str]
    """labelSelector or fieldSelector."""
    changed: Listener
    count_error: CountError
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """The first list was read, or could not be."""
    _version: str = ""
    """Of the last list, event or bookmark; empty: a list is due."""
    _listed: bool = False
    """A list was read at least once."""
    _failures: int = 0
    _page: int = PAGE

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._follow()
            except SilentError as error:  # nothing has failed yet: a busy API server's bookmarks come late
                self.count_error(self.kind.name, self.namespace or "", error.reason)
            except ExpiredError as error:
                await self._list_again(error)
            except KubeError as error:
                await self._back_off(error)

    async def _follow(self) -> None:
        """List where that is due, then one watch."""
        if not self._version:
            await self._list()
        clock = asyncio.get_running_loop().time
        began, before = clock(), self._version
        await self._watch()
        if clock() - began < SHORT_SECONDS and self._version == before:
            raise KubeError(0, "ShortWatch", "the watch ended at once")

    async def _list(self) -> None:
        seen: set[str] = set()
        version = 0
        pages = self.kube.pages(self.kind, self.namespace, self._page, **self.selector)
        async with aclosing(pages):
            async for page in pages:
                for item in page.items:
                    seen.add(str(item["metadata"].get("uid")))
                    self._notify(self.store.put_listed(self.kind, item))
                page.items.clear()  # so that no two pages are held at a time
                version = page.version
        self._notify(self.store.drop_unlisted(self.kind, self.namespace, seen, version))
        self._version, self._page, self._listed = str(version), PAGE, True
        self._recovered()
        self._notify(self.store.set_read(self.kind, self.namespace))
        self.answered.set()

    async def _watch(self) -> None:
        seconds = WATCH_SECONDS * (1 + random.random())  # noqa: S311 - jitter
        events = self.kube.watch(self.kind, self.namespace, self._version, seconds, SILENT_SECONDS, **self.selector)
        async with aclosing(events):
            async for event in events:
                self._recovered()
                if event.type == "DELETED":
                    self._notify(self.store.drop(self.kind, event.object))
                elif event.type in ("ADDED", "MODIFIED"):
                    self._notify(self.store.put(self.kind, event.object))
                self._version = str(event.object.get("metadata", {}).get("resourceVersion") or self._version)

    def _notify(self, keys: set[Key]) -> None:
        """Before the first list is complete nobody is notified: passes are held until then, and follow it."""
        if self._listed:
            for key in keys:
                self.changed(key)

    def _recovered(self) -> None:
        if self._failures:
            log.info("%s can be read again", self._what)
        self._failures = 0

    async def _list_again(self, error: KubeError) -> None:
        """Larger pages need fewer of them: the version of a list that is too slow is forgotten before its end."""
        if not self._version:
            self._page *= 4
        self._version = ""
        self.count_error(self.kind.name, self.namespace or "", error.reason)
        await asyncio.sleep(_jitter(FIRST_BACKOFF))

    async def _back_off(self, error: KubeError) -> None:
        """After a refusal the kind counts as not read, and is listed anew; else the watch goes on where it was.

        What could be read once stays known while there is no answer: what is written would fail as well.
        """
        self._failures += 1
        self.count_error(self.kind.name, self.namespace or "", error.reason or str(error.status))
        if self._failures == 1:
            log.warning("%s cannot be watched, and is tried again: %s", self._what, error)
        if error.status == 404 and self.kind is POOL_SCALER:
            self._take_as_empty()
        elif error.status in REFUSALS or not self._listed:
            self._version = ""
            self.store.set_unread(self.kind, self.namespace, f"{self._what} cannot be read: {error.message}")
        self.answered.set()
        await asyncio.sleep(_jitter(min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** min(self._failures - 1, 10))))

    def _take_as_empty(self) -> None:
        """The CRD is not installed, so there are none. Only services in mode External miss them, and say so."""
        self._version = ""
        self._notify(self.store.drop_unlisted(self.kind, self.namespace, (), math.inf))
        self._notify(self.store.set_read(self.kind, self.namespace))

    @property
    def _what(self) -> str:
        return f"{self.kind.plural} in {f'namespace {self.namespace}' if self.namespace else 'all namespaces'}"


def _jitter(seconds: float) -> float:
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load
