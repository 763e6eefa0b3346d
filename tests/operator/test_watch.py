"""What the operator watches, and how the store and the listeners learn of changes, unseen deletions included."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import kopf
import pytest
from tests.operator.conftest import until

from phasewise_operator import watch
from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, WATCHED_KINDS, Kind, Manifest
from phasewise_operator.kube import Kube, Listing
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

KEY: Key = ("default", "chat")


def deployment(name: str, version: int = 1) -> Manifest:
    labels = {contract.LABEL_SERVICE: "chat"}
    meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": meta}


class ListServer:
    """Answers lists by kind; `queries`: kind, namespace and selector of each."""

    def __init__(self) -> None:
        self.items: dict[str, list[Manifest]] = {}
        self.version = 10
        self.queries: list[tuple[str, str | None, str]] = []

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> Listing:
        self.queries.append((kind.name, namespace, query.get("labelSelector", "")))
        return Listing(self.items.get(kind.name, []), self.version)


def test_services_and_every_kind_with_our_label_are_watched_by_handlers_that_write_nothing() -> None:
    registry, settings = watch.make_registry(lambda *_: None), kopf.OperatorSettings()
    watch.configure_kopf(settings)
    watched = {str(handler.selector and handler.selector.any_name) for handler in registry._watching.get_all_handlers()}
    assert watched == {kind.plural for kind in (INFERENCE_SERVICE, *WATCHED_KINDS)}
    assert list(registry._changing.get_all_handlers()) == list(registry._spawning.get_all_handlers()) == []
    assert not settings.posting.enabled
    selectors = cast("dict[Any, str]", settings.watching.label_selectors)
    expected = dict.fromkeys((kind.plural for kind in WATCHED_KINDS), watch.SELECTOR)
    assert {resource.any_name: text for resource, text in selectors.items()} == expected
    assert contract.LABEL_SERVICE in watch.SELECTOR


async def test_a_handler_passes_on_the_kind_the_event_and_the_object() -> None:
    came: list[tuple[Kind, str | None, Manifest]] = []
    registry = watch.make_registry(lambda *event: came.append(event))
    for handler in registry._watching.get_all_handlers():
        if handler.selector and handler.selector.any_name == DEPLOYMENT.plural:
            await cast("Any", handler.fn)(event={"type": "ADDED", "object": deployment("d")})
    assert came == [(DEPLOYMENT, "ADDED", deployment("d"))]


def test_every_listener_hears_of_a_change_after_the_store_has_it() -> None:
    store = Store()
    heard: list[tuple[str, int]] = []
    feed = watch.feeder(
        store,
        lambda key: heard.append((f"first {key[1]}", len(store.children(key)))),
        lambda key: heard.append((f"second {key[1]}", len(store.children(key)))),
    )
    feed(DEPLOYMENT, None, deployment("d"))
    feed(DEPLOYMENT, "DELETED", deployment("d", 2))
    assert heard == [("first chat", 1), ("second chat", 1), ("first chat", 0), ("second chat", 0)]


def test_an_object_that_is_not_ours_is_no_change() -> None:
    def changed(key: Key) -> None:
        pytest.fail(f"{key} did not change")

    stranger = deployment("d")
    stranger["metadata"]["labels"] = {}
    watch.feeder(Store(), changed)(DEPLOYMENT, "ADDED", stranger)


@pytest.mark.parametrize(("namespaces", "asked"), [((), [None]), (("a", "b"), ["a", "b"])])
async def test_a_full_list_asks_for_every_kind_in_every_namespace(
    namespaces: tuple[str, ...], asked: list[str | None]
) -> None:
    server = ListServer()
    await watch.list_all(cast("Kube", server), Store(), namespaces)
    kinds = [(INFERENCE_SERVICE.name, ""), *((kind.name, watch.SELECTOR) for kind in WATCHED_KINDS)]
    assert server.queries == [(kind, namespace, selector) for kind, selector in kinds for namespace in asked]


async def test_a_deletion_during_a_broken_watch_is_found_by_the_next_full_list() -> None:
    server, store = ListServer(), Store()
    feed = watch.feeder(store)
    feed(DEPLOYMENT, None, deployment("deleted-unseen"))
    feed(DEPLOYMENT, None, deployment("stays"))
    server.items[DEPLOYMENT.name] = [deployment("stays")]
    changed: list[Key] = []
    resync = asyncio.create_task(watch.resync(cast("Kube", server), store, (), 0.001, changed.append))
    await until("two full lists", lambda: len(server.queries) > 2 * len(WATCHED_KINDS) + 2)
    resync.cancel()
    assert [m["metadata"]["name"] for m in store.children(KEY)] == ["stays"]
    assert changed == [KEY], "once: the second list shows nothing new"


async def test_an_error_that_ends_the_watches_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**_: Any) -> None:
        raise OSError("the thread ended")

    monkeypatch.setattr(kopf, "run", run)
    with pytest.raises(OSError, match="the thread ended"):
        async with asyncio.timeout(5):
            await watch.watch(lambda *_: None, ())


async def test_cancelling_ends_the_thread_of_the_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[Any] = []

    def run(stop_flag: Any, **_: Any) -> None:
        stops.append(stop_flag)
        stop_flag.wait(5)

    monkeypatch.setattr(kopf, "run", run)
    watching = asyncio.create_task(watch.watch(lambda *_: None, ()))
    await until("Kopf runs", lambda: stops)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert stops[0].is_set()
