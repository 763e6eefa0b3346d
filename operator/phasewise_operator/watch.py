"""Keeps the store up to date by watches and by a full list now and then, and says which services changed. I/O.

Every Kopf decorator is here. `on.event` alone: such handlers write nothing on the user's objects, and need no
finalizers. Kopf has a thread and an event loop of its own, for it takes the loop it runs in for its own: it cancels
every task there when it ends. After a watch was interrupted, Kopf lists again but reports no deletions of that time;
the full list does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import kopf

from phasewise_operator.kinds import INFERENCE_SERVICE, WATCHED_KINDS, Kind, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

SELECTOR = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY},{contract.LABEL_SERVICE}"
Feed = Callable[[Kind, str | None, Manifest], None]
"""Takes a kind, the watch event's type (None: from the list before the watch) and the object."""
Listener = Callable[[Key], None]
"""Is called with the key of each service of which an object changed; must return at once."""
FIRST_SECONDS = 10.0
"""Until the first full list: watches begin after the list that the operator starts with."""


def feeder(store: Store, *changed: Listener) -> Feed:
    """Puts what a watch shows into the store, then calls the listeners."""

    def feed(kind: Kind, event: str | None, manifest: Manifest) -> None:
        for key in store.drop(kind, manifest) if event == "DELETED" else store.put(kind, manifest):
            _notify(changed, key)

    return feed


async def list_all(kube: Kube, store: Store, namespaces: tuple[str, ...]) -> set[Key]:
    """List everything once; returns the services of which anything changed, deletions that no watch showed included."""
    changed: set[Key] = set()
    for kind in (INFERENCE_SERVICE, *WATCHED_KINDS):
        query = {} if kind is INFERENCE_SERVICE else {"labelSelector": SELECTOR}
        for namespace in namespaces or (None,):
            listing = await kube.list(kind, namespace, **query)
            changed |= store.replace(kind, namespace, listing.items, listing.version)
    return changed


async def resync(kube: Kube, store: Store, namespaces: tuple[str, ...], seconds: float, *changed: Listener) -> None:
    """For ever: list everything, and call the listeners for what the watches did not show. The first time is soon."""
    pause = min(FIRST_SECONDS, seconds)
    while True:
        await asyncio.sleep(pause)
        pause = seconds
        for key in await list_all(kube, store, namespaces):
            _notify(changed, key)


def _notify(listeners: Iterable[Listener], key: Key) -> None:
    for changed in listeners:
        changed(key)


def make_registry(feed: Feed) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings)

    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(login)
    for kind in (INFERENCE_SERVICE, *WATCHED_KINDS):
        kopf.on.event(kind.api_version, kind.plural, registry=registry)(_handler(kind, feed))
    return registry


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.connect_timeout = 5
    for kind in WATCHED_KINDS:
        settings.watching.label_selectors[kind.api_version, kind.plural] = SELECTOR


def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """A pod's service account, else the kubeconfig."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def _handler(kind: Kind, feed: Feed) -> Callable[..., Any]:
    async def handle(event: Any, **_: Any) -> None:
        feed(kind, event["type"], cast("Manifest", event["object"]))

    handle.__name__ = f"handle_{kind.plural}"
    return handle


async def watch(feed: Feed, namespaces: tuple[str, ...]) -> None:
    """Kopf's watches, until cancelled; `feed` is called in this event loop. Raises the error that ended them."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    stop = threading.Event()

    def hand_over(kind: Kind, event: str | None, manifest: Manifest) -> None:
        if not stop.is_set():
            loop.call_soon_threadsafe(feed, kind, event, manifest)

    def settle(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_exception(error or RuntimeError("Kopf ended by itself"))

    def run() -> None:
        error: BaseException | None = None
        try:
            kopf.run(
                registry=make_registry(hand_over),
                settings=kopf.OperatorSettings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop,
            )
        except BaseException as caught:  # noqa: BLE001 - `watch` raises it
            error = caught
        if not stop.is_set():
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="kopf", daemon=True).start()
    try:
        await ended
    finally:
        stop.set()
