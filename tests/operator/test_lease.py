"""Election against a small Lease store with the API server's own rule: a write needs the stored version."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from phasewise_operator import lease as lease_module
from phasewise_operator.kinds import Kind, Manifest
from phasewise_operator.kube import Kube, KubeError
from phasewise_operator.lease import Election, Sighting, may_take
from phasewise_operator.settings import Settings


class LeaseServer:
    """Stands for an API server that can be made to go away, which a real one is in e2e."""

    def __init__(self) -> None:
        self.stored: Manifest | None = None
        self.version = 0
        self.away = False

    async def call(self, method: str, path: str, **_: Any) -> Manifest:
        self._answer()
        if self.stored is None:
            raise KubeError(404, "NotFound", path)
        return cast("Manifest", {**self.stored, "spec": dict(self.stored["spec"])})

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        self._answer()
        if self.stored is not None:
            raise KubeError(409, "AlreadyExists", "")
        return self._store(body)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Manifest, seconds: float) -> Manifest:
        self._answer()
        if self.stored is None or body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", "")
        return self._store(body)

    def _answer(self) -> None:
        if self.away:
            raise KubeError(0, "ConnectionRefused", "")

    def _store(self, body: Manifest) -> Manifest:
        self.version += 1
        self.stored = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.stored


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def election(server: LeaseServer, clock: Clock, identity: str) -> Election:
    settings = Settings(identity=identity, retry_seconds=0.001)
    return Election(cast("Kube", server), settings, clock)


async def attempt(who: Election) -> bool:
    return await who._attempt()


async def test_one_of_two_leads(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    assert await attempt(a)
    assert not await attempt(b)
    assert (a.leading(), b.leading()) == (True, False)


async def test_a_leader_that_cannot_renew_stops_before_another_may_take_over(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    assert await attempt(a)
    assert not await attempt(b)
    server.away = True
    clock.now += 10.5
    assert not await attempt(a)
    assert not a.leading(), "the renew deadline has passed"
    server.away = False
    assert not await attempt(b), "the lease has not run out yet"
    clock.now += 5
    assert await attempt(b)
    assert not await attempt(a)


async def test_a_renewed_lease_is_not_taken_however_old_its_first_sight(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await attempt(a)
    for _ in range(10):
        clock.now += 9
        assert await attempt(a)
        assert server.stored is not None
        server.stored["spec"]["renewTime"] = f"{clock.now}"  # wall time may not have moved between two renewals here
        assert not await attempt(b)


async def test_release_hands_over_at_once(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await attempt(a)
    await a.release()
    assert not a.leading()
    assert await attempt(b)
    assert server.stored is not None
    assert server.stored["spec"]["leaseTransitions"] == 1


async def test_hold_returns_when_another_has_taken_the_lease(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await a.acquire()
    await a.release()
    await attempt(b)
    a._held_until = clock.now + 5
    async with asyncio.timeout(5):
        await a.hold()
    assert not a.leading()


async def test_acquire_outlasts_an_api_server_that_is_away(server: LeaseServer, clock: Clock) -> None:
    server.away = True
    a = election(server, clock, "a")
    waiting = asyncio.create_task(a.acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    server.away = False
    async with asyncio.timeout(5):
        await waiting
    assert a.leading()


@pytest.mark.parametrize(
    ("holder", "age", "expected"), [("", 0, True), ("me", 0, True), ("other", 14, False), ("other", 15.1, True)]
)
def test_the_lease_may_be_taken_when_free_own_or_expired(holder: str, age: float, expected: bool) -> None:
    assert may_take(Sighting(holder, "t", 0), "me", 15, age) is expected


def test_calls_end_before_the_renew_deadline() -> None:
    assert lease_module.CALL_SECONDS < Settings().renew_deadline_seconds < Settings().lease_seconds
