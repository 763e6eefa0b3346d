"""Keeps the store and the queue fed: from the watches, and from a full list now and then. I/O.

After a watch has been broken, Kopf lists again but does not tell what was deleted meanwhile; the full list does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phasewise_operator.handlers import SELECTOR, Feed
from phasewise_operator.kinds import INFERENCE_SERVICE, WATCHED_KINDS, Kind, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.store import Key, Store

FIRST_SECONDS = 10.0


def feeder(store: Store, changed: Callable[[Key], None]) -> Feed:
    """Keeps what came and calls `changed` with the service's key; nothing more is remembered of an event."""

    def feed(kind: Kind, event: str | None, manifest: Manifest) -> None:
        key = store.drop(kind, manifest) if event == "DELETED" else store.put(kind, manifest)
        if key is not None:
            changed(key)

    return feed


async def list_all(kube: Kube, store: Store, namespaces: tuple[str, ...]) -> set[Key]:
    """Scrape everything once; returns the services for which anything is new, unseen deletions included."""
    changed: set[Key] = set()
    for kind in (INFERENCE_SERVICE, *WATCHED_KINDS):
        query = {} if kind is INFERENCE_SERVICE else {"labelSelector": SELECTOR}
        for namespace in namespaces or (None,):
            listing = await kube.list(kind, namespace, **query)
            changed |= store.replace(kind, namespace, listing.items, listing.version)
    return changed


async def resync(
    kube: Kube, store: Store, changed: Callable[[Key], None], namespaces: tuple[str, ...], seconds: float
) -> None:
    """For ever: list again, and call `changed` for what had changed unseen.

    Soon at first: the watches began after the first list.
    """
    pause = min(FIRST_SECONDS, seconds)
    while True:
        await asyncio.sleep(pause)
        pause = seconds
        for key in await list_all(kube, store, namespaces):
            changed(key)
