"""Election of one leader in a release: who takes the Lease, how long it is held, and until when writes may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from tests.operator.lease_server import Clock, LeaseServer

from phasewise_operator import lease as lease_module
from phasewise_operator.kube import Kube
from phasewise_operator.lease import Election, Ref, Sighting, may_take
from phasewise_operator.settings import Settings

SETTINGS = Settings()


class NoRivals:
    async def leading(self) -> list[Ref]:
        return []


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def election(server: LeaseServer, clock: Clock, identity: str) -> Election:
    settings = Settings(identity=identity, retry_seconds=0.001)
    return Election(cast("Kube", server), settings, NoRivals(), clock)


async def held(who: Election, alive: Callable[[], bool] = lambda: True) -> None:
    async with asyncio.timeout(5):
        await who.hold(asyncio.Event(), alive)


async def test_one_of_two_leads(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    assert await a.take()
    assert not await b.take()
    assert (a.leading(), b.leading()) == (True, False)
    assert b.standby == "a leads"


async def test_a_leader_that_cannot_renew_stops_before_another_may_take_over(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    assert await a.take()
    assert not await b.take()
    server.away = True
    clock.now += 10.5
    assert not await a._renew()
    assert not a.leading(), "the renew deadline has passed"
    server.away = False
    assert not await b.take(), "the lease has not run out yet"
    clock.now += 5
    assert await b.take()
    assert not await a._renew()
    assert not a.leading()


async def test_a_renewed_lease_is_not_taken_however_old_its_first_sight(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await a.take()
    for _ in range(10):
        clock.now += 9
        assert await a._renew()
        server.stored["spec"]["renewTime"] = f"{clock.now}"  # wall time may not have moved between two renewals here
        assert not await b.take()


async def test_a_renewal_is_tried_until_the_deadline_and_no_call_goes_on_after_it(
    server: LeaseServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that answers once in nine seconds does not end a term."""
    monkeypatch.setattr(lease_module, "RETRY_SECONDS", 0)
    a = election(server, clock, "a")
    await a.take()
    server.timeouts.clear()
    server.away = True

    def alive() -> bool:
        clock.now += 3  # between two tries
        server.away = clock.now < 109
        return clock.now < 110

    await held(a, alive)
    assert server.timeouts[:3] == [pytest.approx(5), pytest.approx(4), pytest.approx(1)]
    assert server.stored["spec"]["holderIdentity"] == "a"
    assert a._renewed == float("-inf"), "it let go because nothing was alive, not because the lease was lost"


async def test_a_write_may_take_until_another_may_take_over(server: LeaseServer, clock: Clock) -> None:
    a = election(server, clock, "a")
    assert a.seconds_to_write() == 0
    await a.take()
    assert a.seconds_to_write() == pytest.approx(SETTINGS.lease_seconds)
    clock.now += 9.9
    assert a.seconds_to_write() == pytest.approx(5.1)
    clock.now += 0.2
    assert a.seconds_to_write() == 0, "after the renew deadline no write begins"


async def test_release_hands_over_at_once(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await a.take()
    await a.release()
    assert (a.leading(), a.seconds_to_write()) == (False, 0)
    assert await b.take()
    assert server.stored["spec"]["leaseTransitions"] == 1


async def test_release_leaves_the_lease_of_another_alone(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await a.take()
    await b.release()
    assert server.stored["spec"]["holderIdentity"] == "a"


async def test_hold_returns_when_another_has_taken_the_lease(server: LeaseServer, clock: Clock) -> None:
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await a.take()
    server.stored["spec"]["holderIdentity"] = ""
    await b.take()
    await held(a)
    assert not a.leading()
    assert server.stored["spec"]["holderIdentity"] == "b"


async def test_a_leader_with_nothing_alive_lets_the_lease_run_out(server: LeaseServer, clock: Clock) -> None:
    """It is not given up at once: a write of the operator that hangs may be in flight."""
    a, b = election(server, clock, "a"), election(server, clock, "b")
    await a.take()
    await held(a, alive=lambda: False)
    assert not a.leading()
    assert not await b.take()
    clock.now += 15.1
    assert await b.take()


async def test_the_lease_says_of_which_namespaces_it_is(server: LeaseServer, clock: Clock) -> None:
    settings = Settings(identity="a", lease_name="staging-phasewise-operator", watch_namespaces=("x", "y"))
    await Election(cast("Kube", server), settings, NoRivals(), clock).take()
    assert server.stored["metadata"]["name"] == "staging-phasewise-operator"
    assert server.stored["metadata"]["labels"] == {"app.kubernetes.io/name": "phasewise-operator"}
    assert server.stored["metadata"]["annotations"] == {"phasewise.dev/watch-namespaces": "x,y"}


@pytest.mark.parametrize(
    ("holder", "age", "expected"), [("", 0, True), ("me", 0, True), ("other", 14, False), ("other", 15.1, True)]
)
def test_the_lease_may_be_taken_when_free_own_or_expired(holder: str, age: float, expected: bool) -> None:
    assert may_take(Sighting(holder, "t", 0), "me", 15, age) is expected


def test_a_term_ends_before_the_lease_runs_out() -> None:
    assert 2 * SETTINGS.retry_seconds < SETTINGS.renew_deadline_seconds < SETTINGS.lease_seconds
