"""Keeps the store up to date, and says which services changed. I/O.

Children and pods are kept by reflectors (reflector.py). Kopf watches InferenceServices, the user's objects: every Kopf
decorator is here. `on.event` alone: such handlers write nothing on the user's objects, and need no finalizers. Kopf has
a thread and an event loop of its own, for it takes the loop it runs in for its own: it cancels every task there when it
ends.

Where a namespace may not be read for a moment, Kopf's watch of it ends for good, with no more than a line in the log;
and of deletions while a watch is interrupted Kopf reports none. So the metadata of InferenceServices is listed now and
then: it shows deletions, and whether Kopf is to be started anew.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import kopf

from phasewise_operator.kinds import INFERENCE_SERVICE, NODE, WATCHED_KINDS, Kind, Manifest
from phasewise_operator.kube import Kube, Listing
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.nodes import CORDONED
from phasewise_operator.reflector import REFUSALS, CountError, Listener, Reflector
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

log = logging.getLogger(__name__)
SELECTOR = {"labelSelector": f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY},{contract.LABEL_SERVICE}"}
Feed = Callable[[Kind, str | None, Manifest], None]
"""Takes a kind, the watch event's type (None: from the list before the watch) and the object."""
CHECK_SECONDS: Final = 60.0
"""Between two lists of the metadata of InferenceServices."""
RETRY_SECONDS: Final = 5.0
"""The same where a namespace could not be read, and until Kopf is begun again after it ended."""
LAG_SECONDS: Final = 30.0
"""What is listed and has not been shown by Kopf for so long, it does not see: a first list of 1,000 takes it 5 s."""


def feeder(store: Store, *changed: Listener) -> Feed:
    """Puts what a watch shows into the store, then calls the listeners."""

    def feed(kind: Kind, event: str | None, manifest: Manifest) -> None:
        for key in store.drop(kind, manifest) if event == "DELETED" else store.put(kind, manifest):
            for listener in changed:
                listener(key)

    return feed


@dataclass
class Watches:
    """All that a term watches. No error of the API server ends them."""

    kube: Kube
    store: Store
    namespaces: tuple[str, ...]
    """Empty: all."""
    count_error: CountError
    listeners: tuple[Listener, ...]
    follow_drains: bool = True
    """Whether nodes are watched, where rights are not limited to namespaces."""
    _readable: dict[str | None, bool] = field(default_factory=dict[str | None, bool])
    """Whether InferenceServices could be listed the last time, by namespace."""
    _unseen: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """When a check first listed what Kopf had not shown, by uid and version."""

    async def run(self) -> None:
        """Until cancelled. Kopf begins when children and pods are read, so that a first pass knows them."""
        scopes = self.namespaces or (None,)
        reflectors = [
            Reflector(self.kube, self.store, kind, namespace, SELECTOR, self._changed, self.count_error)
            for kind in WATCHED_KINDS
            for namespace in scopes
        ]
        if self.follow_drains and not self.namespaces:
            selector = {"fieldSelector": CORDONED}
            reflectors.append(
                Reflector(self.kube, self.store.nodes, NODE, None, selector, self._changed, self.count_error)
            )
        for reflector in reflectors:
            reflector.store.set_unread(reflector.kind, reflector.namespace)
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run(), name=f"reflector of {reflector.kind.plural}")
            for reflector in reflectors:
                await reflector.answered.wait()
            await self._follow_services(scopes)

    def _changed(self, key: Key) -> None:
        for listener in self.listeners:
            listener(key)

    async def _follow_services(self, scopes: tuple[str | None, ...]) -> None:
        """Kopf in the namespaces that can be read, and anew whenever these are others, or it has ended or lags."""
        while True:
            for namespace in scopes:
                await self._probe(namespace)
            if any(self._readable.values()):
                await self._run_kopf(scopes)
            await asyncio.sleep(RETRY_SECONDS)

    async def _run_kopf(self, scopes: tuple[str | None, ...]) -> None:
        readable = self._readable.copy()
        names = tuple(namespace for namespace, may in readable.items() if may and namespace)
        kopf_run = asyncio.create_task(watch(feeder(self.store, *self.listeners), names))
        try:
            while not kopf_run.done() and readable == self._readable:
                pause = CHECK_SECONDS if all(readable.values()) else RETRY_SECONDS
                await asyncio.wait({kopf_run}, timeout=pause)
                if any([await self._check(namespace) for namespace in scopes]):
                    break
            if kopf_run.done():
                log.warning("Kopf ended, and begins anew: %s", kopf_run.exception())
        finally:
            self._unseen.clear()
            kopf_run.cancel()
            await asyncio.gather(kopf_run, return_exceptions=True)

    async def _probe(self, namespace: str | None) -> None:
        """Whether InferenceServices can be listed."""
        await self._list(namespace, limit=1)

    async def _check(self, namespace: str | None) -> bool:
        """Drop what was deleted unseen. Returns whether something that is listed was not shown for LAG_SECONDS."""
        kind, now = INFERENCE_SERVICE, asyncio.get_running_loop().time()
        listing = await self._list(namespace)
        if listing is None:
            return False
        uids = [str(m["metadata"]["uid"]) for m in listing.items]
        for key in self.store.drop_unlisted(kind, namespace, uids, listing.version):
            self._changed(key)
        metas = [m["metadata"] for m in self.store.unknown(kind, listing.items)]
        unseen = {(str(meta["uid"]), str(meta["resourceVersion"])) for meta in metas}
        lags = any(now - self._unseen.setdefault(ref, now) >= LAG_SECONDS for ref in unseen)
        if lags:
            log.warning("Kopf does not show changes of %s, and begins anew", kind.plural)
        return lags

    async def _list(self, namespace: str | None, limit: int = 0) -> Listing | None:
        """Metadata alone; None: it could not be read."""
        try:
            listing = await self.kube.list_metadata(INFERENCE_SERVICE, namespace, limit)
        except KubeError as error:
            self._failed(namespace, error)
            return None
        if not self._readable.get(namespace, True):
            log.info("inferenceservices in %s can be read again", _scope(namespace))
        self._readable[namespace] = True
        return listing

    def _failed(self, namespace: str | None, error: KubeError) -> None:
        """Where there is no answer, what could be read before counts as readable."""
        self.count_error(INFERENCE_SERVICE.name, namespace or "", error.reason or str(error.status))
        if self._readable.get(namespace, True):
            log.warning("inferenceservices in %s cannot be read: %s", _scope(namespace), error)
        if error.status in REFUSALS or namespace not in self._readable:
            self._readable[namespace] = False


def _scope(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "all namespaces"


def make_registry(feed: Feed) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings)

    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(login)
    kind = INFERENCE_SERVICE
    kopf.on.event(kind.api_version, kind.plural, registry=registry)(_handler(kind, feed))
    return registry


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.queueing.idle_timeout = 0.5  # Kopf keeps an object's last body and a task for so long
    settings.watching.chunk_size = 100
    settings.watching.connect_timeout = 5


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
