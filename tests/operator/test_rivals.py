"""Operators of several releases: of those that look after the same namespace never do two lead."""

from __future__ import annotations

import asyncio
import datetime
import logging
from typing import cast

import pytest
from prometheus_client import Gauge
from tests.operator.lease_server import Clock, LeaseServer, lease_of_version_before

from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.lease import RIVAL_SECONDS, Election
from phasewise_operator.metrics import Metrics
from phasewise_operator.rivals import Releases
from phasewise_operator.settings import DEFAULT_LEASE, Settings


class Release:
    """The operator of a release: its election and what it says of others."""

    def __init__(
        self, server: LeaseServer, clock: Clock, namespace: str, name: str = DEFAULT_LEASE, watched: str = ""
    ) -> None:
        namespaces = tuple(filter(None, watched.split(",")))
        self.settings = Settings(
            identity=f"{namespace}-{name}-0",
            namespace=namespace,
            lease_name=name,
            watch_namespaces=namespaces,
            pod_uid="uid-0",
        )
        self.gauge: Gauge = Metrics().overlapping_releases
        kube = cast("Kube", server)
        self.election = Election(kube, self.settings, Releases(kube, self.settings, self.gauge, clock), clock)

    async def take(self) -> bool:
        return await self.election.take()


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        pytest.param("", "", False, id="twice cluster-wide"),
        pytest.param("", "a", False, id="cluster-wide and one namespace"),
        pytest.param("a", "", False, id="one namespace and cluster-wide"),
        pytest.param("a,b", "b,c", False, id="one namespace in both"),
        pytest.param("a,b", "c", True, id="no namespace in both"),
    ],
)
@pytest.mark.parametrize("namespaces", [("prod", "staging"), ("prod", "prod")])
async def test_of_two_releases_with_a_namespace_in_both_one_leads(
    server: LeaseServer, clock: Clock, first: str, second: str, both: bool, namespaces: tuple[str, str]
) -> None:
    one = Release(server, clock, namespaces[0], watched=first)
    other = Release(server, clock, namespaces[1], "staging-phasewise-operator", watched=second)
    assert await one.take()
    assert await other.take() is both
    assert one.election.leading()


async def test_a_release_that_stands_by_says_so_once_and_leads_when_the_other_has_gone(
    server: LeaseServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, other = Release(server, clock, "prod"), Release(server, clock, "staging", watched="a,b")
    assert await one.take()
    for _ in range(3):
        assert not await other.take()
    text = (
        "standing by: this release is to look after a, b, but phasewise-operator in namespace prod looks after all "
        "namespaces. Set watchNamespaces so that no namespace has two operators, or uninstall one of them"
    )
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [text]
    assert [(event["reason"], event["note"], event["regarding"]["uid"]) for event in server.events] == [
        ("OverlappingRelease", text, "uid-0")
    ]
    assert other.gauge._value.get() == 1
    assert other.election.pause == RIVAL_SECONDS
    await one.election.release()
    assert await other.take()
    assert other.gauge._value.get() == 0
    assert "no operator of another release" in caplog.text


async def test_a_release_that_is_killed_is_replaced_when_its_lease_has_run_out(
    server: LeaseServer, clock: Clock
) -> None:
    one, other = Release(server, clock, "prod"), Release(server, clock, "staging")
    assert await one.take()
    assert not await other.take()
    clock.now += 14.9
    assert not await other.take()
    clock.now += 0.2
    assert await other.take()
    assert not await one.take(), "it comes back second"


async def test_a_lease_that_was_left_behind_long_ago_holds_up_nobody(server: LeaseServer, clock: Clock) -> None:
    old = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    stale = lease_of_version_before("prod", "pod-0", old.isoformat())
    server.leases["prod", DEFAULT_LEASE] = stale
    assert await Release(server, clock, "staging").take()


@pytest.mark.parametrize("turn", range(8))
async def test_two_that_begin_at_the_same_moment_do_not_both_lead_and_one_does_soon(
    server: LeaseServer, clock: Clock, turn: int
) -> None:
    """Every call gives the other a turn; the second begins `turn` calls after the first."""
    server.takes_turns = True
    one, other = Release(server, clock, "prod"), Release(server, clock, "staging")

    async def later() -> bool:
        for _ in range(turn):
            await asyncio.sleep(0)
        return await other.take()

    await asyncio.gather(one.take(), later())
    leading = [release for release in (one, other) if release.election.leading()]
    assert len(leading) <= 1
    if not leading:
        assert one.election.pause < other.election.pause, "the first by name tries again first"
        assert await one.take()


async def test_the_lease_of_an_operator_of_the_version_before_is_respected(server: LeaseServer, clock: Clock) -> None:
    """An upgrade of a release that is not named phasewise: the old pod leads by the one name that all had."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    server.leases["prod", DEFAULT_LEASE] = lease_of_version_before("prod", "old-pod", now)
    upgraded = Release(server, clock, "prod", "staging-phasewise-operator", watched="a")
    assert not await upgraded.take()
    server.leases["prod", DEFAULT_LEASE]["spec"]["holderIdentity"] = ""
    assert await upgraded.take()


async def test_where_leases_may_not_be_listed_the_operator_says_so_once_and_leads(
    server: LeaseServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server.may_list = False
    release = Release(server, clock, "prod")
    assert await release.take()
    assert await release.take()
    assert caplog.text.count("operators of other releases cannot be seen") == 1


async def test_a_look_at_the_others_that_fails_lets_nobody_lead(
    server: LeaseServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_query: dict[str, str]) -> None:
        raise KubeError(500, "InternalError", "etcd")

    monkeypatch.setattr(server, "_listed", fails)
    assert not await Release(server, clock, "prod").take()
    assert server.leases == {}
