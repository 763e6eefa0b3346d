"""What Kopf watches, how the store and the listeners learn of changes, and that no refusal ends the watches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import kopf
import pytest
from kubernetes.aio import client
from tests.operator.api_server import ApiServer, kubeconfig
from tests.operator.conftest import running, until

from phasewise_operator import watch
from phasewise_operator.connection import Connection
from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, WATCHED_KINDS, Kind, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.store import Key, Store
from phasewise_operator.watch import Watches
from phasewise_runtime import contract

KEY: Key = ("default", "chat")


def deployment(name: str, version: int = 1) -> Manifest:
    labels = {contract.LABEL_SERVICE: "chat"}
    meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": meta}


def service(name: str, namespace: str = "default") -> Manifest:
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"}, "spec": {}}


def test_kopf_watches_services_alone_by_handlers_that_write_nothing() -> None:
    registry, settings = watch.make_registry(lambda *_: None), kopf.OperatorSettings()
    watch.configure_kopf(settings)
    watched = {str(handler.selector and handler.selector.any_name) for handler in registry._watching.get_all_handlers()}
    assert watched == {INFERENCE_SERVICE.plural}
    assert list(registry._changing.get_all_handlers()) == list(registry._spawning.get_all_handlers()) == []
    assert not settings.posting.enabled


async def test_a_handler_passes_on_the_kind_the_event_and_the_object() -> None:
    came: list[tuple[Kind, str | None, Manifest]] = []
    registry = watch.make_registry(lambda *event: came.append(event))
    for handler in registry._watching.get_all_handlers():
        await cast("Any", handler.fn)(event={"type": "ADDED", "object": service("s")})
    assert came == [(INFERENCE_SERVICE, "ADDED", service("s"))]


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


async def test_an_error_that_ends_kopf_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**_: Any) -> None:
        raise OSError("the thread ended")

    monkeypatch.setattr(kopf, "run", run)
    with pytest.raises(OSError, match="the thread ended"):
        async with asyncio.timeout(5):
            await watch.watch(lambda *_: None, ())


async def test_cancelling_ends_kopfs_thread(monkeypatch: pytest.MonkeyPatch) -> None:
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


class Term:
    """All watches of a term on a fake API server, Kopf's included."""

    def __init__(self, server: ApiServer, kube: Kube, namespaces: tuple[str, ...]) -> None:
        self.server = server
        self.store = Store()
        self.changed: list[Key] = []
        self.errors: Counter[tuple[str, str]] = Counter()
        self.watches = Watches(kube, self.store, namespaces, self._count, (self.changed.append,))

    def _count(self, kind: str, namespace: str, reason: str) -> None:
        self.errors[kind, namespace] += 1

    async def run(self) -> None:
        await self.watches.run()

    async def knows(self, *names: str) -> None:
        def found() -> list[str]:
            return sorted(m["metadata"]["name"] for m in self.store.services())

        try:
            await until(f"the services {names} are known", lambda: found() == sorted(names), seconds=20)
        except AssertionError as error:
            raise AssertionError(f"{error}; known are {found()}, errors {self.errors}") from error

    async def kopf_watches(self, count: int) -> None:
        await until("Kopf watches", lambda: self.server.count("inferenceservices?watch=true") >= count, seconds=20)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.2)
    fake = ApiServer()
    async with fake.serve() as url:
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(url))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield fake


@pytest.fixture
async def kube(server: ApiServer) -> AsyncIterator[Kube]:
    kube = Kube(Connection(client.Configuration(host=server.url)))
    yield kube
    await kube.close()


async def test_children_are_read_before_a_service_is_seen_and_nothing_is_listed_twice(
    server: ApiServer, kube: Kube
) -> None:
    server.put("inferenceservices", service("chat"))
    async with running(Term(server, kube, ())) as term:
        await term.knows("chat")
        lists = Counter(r.split("?")[0] for r in server.requests if "watch=true" not in r and "labelSelector" in r)
    assert lists == Counter({f"GET {kind.path(None)}": 1 for kind in WATCHED_KINDS})
    first_service = next(n for n, r in enumerate(server.requests) if "inferenceservices" in r)
    last_child = max(n for n, r in enumerate(server.requests) if "labelSelector" in r and "watch=true" not in r)
    assert last_child < first_service


async def test_one_namespace_that_may_not_be_read_leaves_the_others_alone(server: ApiServer, kube: Kube) -> None:
    for plural in ("inferenceservices", "deployments"):
        server.refused[plural, "b"] = 403
    server.put("inferenceservices", service("one", "a"))
    server.put("inferenceservices", service("two", "b"))
    async with running(Term(server, kube, ("a", "b"))) as term:
        await term.knows("one")
        assert term.store.unread("a") == []
        assert term.store.unread("b") == ["deployments in namespace b cannot be read: Forbidden"]
        assert term.errors["InferenceService", "b"]
        assert term.errors["Deployment", "b"]
        server.refused.clear()
        await term.knows("one", "two")
        server.put("inferenceservices", service("three", "b"))
        await term.knows("one", "two", "three")


async def test_nodes_that_are_drained_are_known_before_the_first_service(server: ApiServer, kube: Kube) -> None:
    """Else a restart of the operator would write the PodDisruptionBudgets twice."""
    server.put("inferenceservices", service("chat"))
    server.put("nodes", {"metadata": {"name": "n1"}})
    async with running(Term(server, kube, ())) as term:
        await term.knows("chat")
        assert term.store.nodes.cordoned == {"n1"}
    assert server.count("/nodes") == server.count("fieldSelector=spec.unschedulable") > 0


@pytest.mark.parametrize(("namespaces", "asked"), [((), True), (("default",), False)])
async def test_without_a_right_to_nodes_services_go_on(
    server: ApiServer, kube: Kube, namespaces: tuple[str, ...], asked: bool
) -> None:
    server.refused["nodes", ""] = 403
    server.put("inferenceservices", service("chat"))
    async with running(Term(server, kube, namespaces)) as term:
        await term.knows("chat")
        assert term.store.nodes.cordoned is None
        assert term.store.unread("default") == []
    assert bool(server.count("/nodes")) is asked


async def test_a_namespace_that_could_not_be_read_for_a_moment_is_watched_again(
    server: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kopf's own watch of it has ended for good by then."""
    monkeypatch.setattr(watch, "LAG_SECONDS", 0.5)
    async with running(Term(server, kube, ())) as term:
        await term.kopf_watches(1)
        server.refused["inferenceservices", ""] = 403
        server.cut()
        await until("Kopf has asked again", lambda: server.requests[-1].count("inferenceservices"), seconds=20)
        server.refused.clear()
        server.put("inferenceservices", service("new"))
        await term.knows("new")


async def test_a_service_that_was_deleted_unseen_is_dropped(server: ApiServer, kube: Kube) -> None:
    server.put("inferenceservices", service("chat"))
    async with running(Term(server, kube, ())) as term:
        await term.knows("chat")
        await term.kopf_watches(1)
        term.changed.clear()
        server.delete("inferenceservices", "chat", unseen=True)
        await term.knows()
        assert term.changed == [("default", "chat")]


async def test_kopf_begins_anew_when_it_has_ended(
    server: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    def run(stop_flag: Any, **_: Any) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise OSError("no discovery")
        stop_flag.wait(5)

    monkeypatch.setattr(kopf, "run", run)
    async with running(Term(server, kube, ())):
        await until("a second run", lambda: len(runs) == 2)
    assert "Kopf ended, and begins anew: no discovery" in caplog.text
