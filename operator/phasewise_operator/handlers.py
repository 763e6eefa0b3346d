"""What the operator reacts to: every Kopf decorator. A handler only keeps what came and queues a key.

`on.event` alone: such handlers write nothing on the user's objects, and need no finalizers. Imports store and queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import kopf

from phasewise_operator.kinds import INFERENCE_SERVICE, WATCHED_KINDS, Kind, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.queue import WorkQueue
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)
SELECTOR = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY},{contract.LABEL_SERVICE}"


def make_registry(store: Store, queue: WorkQueue[Key], on_started: Callable[[], None]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings)
        on_started()

    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(login)
    for kind in (INFERENCE_SERVICE, *WATCHED_KINDS):
        kopf.on.event(kind.api_version, kind.plural, registry=registry)(_handler(kind, store, queue))
    return registry


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.batching.batch_window = 0.01
    settings.watching.chunk_size = 500
    settings.watching.connect_timeout = 5
    for kind in WATCHED_KINDS:
        settings.watching.label_selectors[kind.api_version, kind.plural] = SELECTOR


def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """A pod's service account, else the kubeconfig."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def _handler(kind: Kind, store: Store, queue: WorkQueue[Key]) -> Callable[..., Any]:
    async def handle(event: Any, **_: Any) -> None:
        manifest = cast("Manifest", event["object"])
        key = store.drop(kind, manifest) if event["type"] == "DELETED" else store.put(kind, manifest)
        if key is not None:
            queue.add(key)

    handle.__name__ = f"handle_{kind.plural}"
    return handle


async def list_all(kube: Kube, store: Store, namespaces: tuple[str, ...]) -> set[Key]:
    """Read everything once; returns the services for which anything is new, deletions that no watch showed included."""
    changed: set[Key] = set()
    for kind in (INFERENCE_SERVICE, *WATCHED_KINDS):
        query = {} if kind is INFERENCE_SERVICE else {"labelSelector": SELECTOR}
        pages = [await kube.list(kind, namespace, **query) for namespace in namespaces or (None,)]
        changed |= store.replace(kind, [item for page in pages for item in page])
    return changed


async def resync(kube: Kube, store: Store, queue: WorkQueue[Key], namespaces: tuple[str, ...], seconds: float) -> None:
    """For ever: list again, and queue what had changed unseen."""
    while True:
        await asyncio.sleep(seconds)
        for key in await list_all(kube, store, namespaces):
            queue.add(key)
