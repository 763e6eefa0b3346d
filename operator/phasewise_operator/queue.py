"""Keyed work queue: a key is in it once, handled by one worker at a time, and comes back later after a failure.

The semantics are those of client-go's workqueue (https://pkg.go.dev/k8s.io/client-go/util/workqueue): add is
idempotent; a key added while it is handled is handled once more afterwards. Groups of keys take turns, so that one
namespace with a thousand services does not keep the others waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF = 0.2
LONGEST_BACKOFF = 60.0


class WorkQueue(Generic[K]):
    def __init__(self, group: Callable[[K], Hashable] = lambda _: None) -> None:
        """`group`: of a key. Within a group the first comes first."""
        self._group = group
        self._ready: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """By group; the group whose turn it is comes first."""
        self._count = asyncio.Semaphore(0)
        """Of keys that are ready."""
        self._waiting: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """Keys that wait or are being handled; those that wait for a later time are not counted."""
        return len(self._waiting) + len(self._running)

    def add(self, key: K) -> None:
        """Now. It replaces an earlier `add_after` of the key."""
        self._cancel_timer(key)
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.setdefault(self._group(key), deque()).append(key)
            self._count.release()

    def add_after(self, key: K, seconds: float) -> None:
        """Later, unless it is added before; of two times the sooner holds."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._timers.get(key)
        if key in self._waiting or (timer is not None and timer.when() <= due):
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(due, self.add, key)

    async def get(self) -> K:
        """The next key; `done` or `failed` must follow."""
        await self._count.acquire()
        group, keys = self._ready.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._ready[group] = keys
        self._waiting.discard(key)
        self._running.add(key)
        return key

    def done(self, key: K) -> None:
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: K) -> float:
        """Handle it again after a pause that doubles with each failure in a row; returns the pause in seconds."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(FIRST_BACKOFF * 2 ** min(count - 1, 20), LONGEST_BACKOFF)
        again = key in self._again
        self._again.discard(key)
        self._running.discard(key)
        if again and count == 1:
            self.add(key)
        else:
            self.add_after(key, pause)
        return pause

    def _release(self, key: K) -> None:
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
