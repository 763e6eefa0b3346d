"""The store follows the API server over real HTTP, whatever happens to lists, streams and permissions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from kubernetes.aio import client
from tests.operator.api_server import ApiServer
from tests.operator.conftest import running, until

from phasewise_operator import reflector as reflector_module
from phasewise_operator.connection import Connection
from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, POOL_SCALER, Kind, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.reflector import Reflector
from phasewise_operator.store import Key, Store
from phasewise_operator.watch import SELECTOR
from phasewise_runtime import contract

KEY: Key = ("default", "chat")


def child(name: str, **more: str) -> Manifest:
    labels = {contract.LABEL_SERVICE: "chat", contract.LABEL_MANAGED_BY: contract.MANAGED_BY}
    return {"metadata": {"name": name, "labels": labels, **more}}


class Follower:
    """A reflector at work on a fake API server, and what came of it."""

    def __init__(self, server: ApiServer, kube: Kube, kind: Kind = DEPLOYMENT, namespace: str | None = None) -> None:
        self.server = server
        self.store = Store()
        self.store.set_unread(kind, namespace)
        self.changed: list[Key] = []
        self.errors: Counter[tuple[str, str, str]] = Counter()
        self.reflector = Reflector(kube, self.store, kind, namespace, SELECTOR, self.changed.append, self._count)

    def _count(self, kind: str, namespace: str, reason: str) -> None:
        self.errors[kind, namespace, reason] += 1

    async def run(self) -> None:
        await self.reflector.run()

    @property
    def names(self) -> list[str]:
        return [m["metadata"]["name"] for m in self.store.children(KEY)]

    async def knows(self, *names: str) -> None:
        try:
            await until(f"{names} are known", lambda: self.names == list(names))
        except AssertionError as error:
            raise AssertionError(f"{error}; known are {self.names}, errors {self.errors}") from error

    async def watches(self, count: int = 1) -> None:
        """Wait until so many watches were asked for, and the last is being served."""
        await until("a watch", lambda: self.server.count("watch=true") >= count and self.server.streams)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(reflector_module, "FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(reflector_module, "LONGEST_BACKOFF", 0.05)
    fake = ApiServer()
    async with fake.serve():
        yield fake


@pytest.fixture
async def kube(server: ApiServer) -> AsyncIterator[Kube]:
    kube = Kube(Connection(client.Configuration(host=server.url)))
    yield kube
    await kube.close()


async def test_a_list_and_the_events_after_it_are_known(server: ApiServer, kube: Kube) -> None:
    server.put("deployments", child("a"))
    async with running(Follower(server, kube)) as follower:
        await follower.knows("a")
        await follower.watches()
        server.put("deployments", child("b"))
        await follower.knows("a", "b")
        server.delete("deployments", "a")
        await follower.knows("b")
    assert follower.changed == [KEY] * 2, "of the events; passes are held before the list"
    assert server.count("/deployments?") == 2, "one list and one watch"
    assert all("labelSelector=app.kubernetes.io" in request for request in server.requests)


async def test_an_object_without_labels_is_not_ours(server: ApiServer, kube: Kube) -> None:
    server.put("deployments", {"metadata": {"name": "bare"}})
    async with running(Follower(server, kube)) as follower:
        await follower.watches()
        server.put("deployments", {"metadata": {"name": "null", "labels": None}})
        server.put("deployments", child("ours"))
        await follower.knows("ours")


async def test_pages_are_taken_over_until_the_last(
    server: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "PAGE", 2)
    for name in "abcde":
        server.put("deployments", child(name))
    follower = Follower(server, kube)
    follower.reflector._page = 2
    async with running(follower):
        await follower.knows(*"abcde")
        await follower.watches()
    assert server.count("limit=2") == 3
    assert server.count("resourceVersion=105") == 1, "the watch begins at the version of the list"


async def test_a_list_whose_version_is_forgotten_between_two_pages_begins_again_with_larger_ones(
    server: ApiServer, kube: Kube
) -> None:
    for name in "abcde":
        server.put("deployments", child(name))
    server.expire_pages = 1
    follower = Follower(server, kube)
    follower.reflector._page = 2
    async with running(follower):
        await follower.watches()
    assert follower.names == list("abcde")
    assert (server.count("limit=2"), server.count("limit=8")) == (2, 1)


async def test_what_is_created_while_a_list_is_under_way_is_not_lost(server: ApiServer, kube: Kube) -> None:
    def create(_: str) -> None:
        server.on_page = lambda _: None
        server.put("deployments", child("d"))

    for name in "abc":
        server.put("deployments", child(name))
    follower = Follower(server, kube)
    follower.reflector._page = 2
    server.on_page = create
    async with running(follower):
        await follower.knows(*"abcd")


async def test_a_bookmark_moves_the_version_from_which_the_next_watch_begins(server: ApiServer, kube: Kube) -> None:
    async with running(Follower(server, kube)) as follower:
        await follower.watches()
        server.version = 500
        server.bookmark("deployments")
        await until("the bookmark is read", lambda: follower.reflector._version == "501")
        server.oldest = 501
        server.cut()
        await follower.watches(2)
        server.put("deployments", child("a"))
        await follower.knows("a")
    assert server.count("limit=") == 1, "no second list"


async def test_a_cut_connection_loses_no_event(server: ApiServer, kube: Kube) -> None:
    server.put("deployments", child("a"))
    async with running(Follower(server, kube)) as follower:
        await follower.watches()
        server.cut()
        await until("the stream is gone", lambda: not server.streams)
        server.delete("deployments", "a")
        server.put("deployments", child("b"))
        await follower.knows("b")
    assert server.count("limit=") == 1


@pytest.mark.parametrize("where", ["in the stream", "at the start"])
async def test_a_forgotten_version_leads_to_a_list_that_shows_unseen_deletions(
    where: str, server: ApiServer, kube: Kube
) -> None:
    for name in ("gone", "stays"):
        server.put("deployments", child(name))
    async with running(Follower(server, kube)) as follower:
        await follower.watches()
        server.delete("deployments", "gone", unseen=True)
        server.put("deployments", child("new"))
        follower.changed.clear()
        if where == "in the stream":
            server.expire("deployments")
        else:
            server.version += 10
            server.oldest = server.version
            server.cut()
        await follower.knows("new", "stays")
    assert server.count("limit=") == 2
    assert follower.errors["Deployment", "", "Expired"] == 1
    assert KEY in follower.changed


async def test_a_list_again_notifies_only_of_what_changed(server: ApiServer, kube: Kube) -> None:
    server.put("deployments", child("a"))
    async with running(Follower(server, kube)) as follower:
        await follower.watches()
        follower.changed.clear()
        server.expire("deployments")
        await follower.watches(2)
        server.put("deployments", child("b"))
        await follower.knows("a", "b")
    assert follower.changed == [KEY], "b alone"


async def test_a_silent_stream_is_given_up_and_is_no_failure(
    server: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector_module, "SILENT_SECONDS", 0.2)
    async with running(Follower(server, kube)) as follower:
        await follower.watches()
        server.silent = True
        server.put("deployments", child("a"))
        await follower.watches(2)
        server.silent = False
        await follower.knows("a")
    assert server.count("limit=") == 1
    assert follower.errors["Deployment", "", "SilentStream"] >= 1
    assert caplog.text == ""


async def test_a_kind_that_may_not_be_read_is_unknown_until_it_may_be(
    server: ApiServer, kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    server.put("deployments", child("a"))
    server.refused["deployments", ""] = 403
    async with running(Follower(server, kube)) as follower:
        await until("three refusals", lambda: follower.errors["Deployment", "", "Forbidden"] >= 3)
        assert follower.reflector.answered.is_set()
        assert "deployments in all namespaces cannot be read: Forbidden" in follower.store.unread("default")
        assert caplog.text.count("cannot be watched") == 1, "said once"
        server.refused.clear()
        await follower.knows("a")
        await until("it is read", lambda: follower.store.unread("default") == [])


async def test_a_permission_that_is_taken_away_makes_what_was_known_unknown(server: ApiServer, kube: Kube) -> None:
    server.put("deployments", child("a"))
    async with running(Follower(server, kube, namespace="default")) as follower:
        await follower.watches()
        assert follower.store.unread("default") == []
        server.refused["deployments", "default"] = 403
        server.cut()
        await until("it is unknown", lambda: follower.store.unread("default"))
        assert follower.names == ["a"], "what is unknown is not gone"
        assert follower.store.unread("other") == []
        server.delete("deployments", "a", unseen=True)
        server.refused.clear()
        await follower.knows()


async def test_while_there_is_no_answer_what_is_known_stays_known(
    server: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("deployments", child("a"))
    async with running(Follower(server, kube)) as follower:
        await follower.watches()
        server.refused["deployments", ""] = 500
        server.cut()
        await until("two failures", lambda: sum(follower.errors.values()) >= 2)
        assert follower.store.unread("default") == []
        server.refused.clear()
        server.put("deployments", child("b"))
        await follower.knows("a", "b")
    assert server.count("limit=") == 1, "the watch went on where it was"


async def test_without_its_crd_there_are_no_pool_scalers(server: ApiServer, kube: Kube) -> None:
    server.refused["poolscalers", ""] = 404
    async with running(Follower(server, kube, POOL_SCALER)) as follower:
        await until("it counts as read", lambda: follower.store.unread("default") == [])
        assert follower.errors["PoolScaler", "", "NotFound"] >= 1
        server.put("poolscalers", child("s"))
        server.refused.clear()
        await follower.knows("s")


async def test_services_that_waited_for_a_kind_are_notified_when_it_is_read(server: ApiServer, kube: Kube) -> None:
    follower = Follower(server, kube, POD)
    follower.store.put(INFERENCE_SERVICE, {"metadata": {"name": "chat", "namespace": "default", "uid": "s"}})
    async with running(follower):
        await until("its service is notified", lambda: follower.changed == [KEY])
