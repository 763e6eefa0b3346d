"""Waiting for requests to arrive, on the admin port."""

from __future__ import annotations

import asyncio

import pytest
from tests.runtime.router.conftest import Router, RouterFactory
from tests.runtime.router.fake_engine import FakeEngine
from tests.runtime.waiting import until

from phasewise_runtime.contract import PATH_ACTIVITY
from phasewise_runtime.router.activity import Activity, read_query


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one when a client begins to wait."""
    begun: list[int] = []
    wait = Activity.other_than

    async def noted(self: Activity, since: int, seconds: float) -> int:
        begun.append(since)
        return await wait(self, since, seconds)

    monkeypatch.setattr(Activity, "other_than", noted)
    return begun


async def ask(r: Router, since: int, seconds: float) -> str:
    reply = await asyncio.wait_for(r.admin(f"{PATH_ACTIVITY}?since={since}&seconds={seconds}"), 10)
    assert reply.status == 200
    return reply.text


async def waiting(activity: Activity, n: int, since: int = 0, seconds: float = 60.0) -> list[asyncio.Task[int]]:
    """`n` clients that have begun to wait."""
    tasks = [asyncio.create_task(activity.other_than(since, seconds)) for _ in range(n)]
    await asyncio.sleep(0)
    assert not any(t.done() for t in tasks)
    return tasks


async def test_all_waiting_clients_get_an_arrival_at_once(router: RouterFactory, questions: list[int]) -> None:
    async with router(FakeEngine("decode", "d0")) as r:
        tasks = [asyncio.create_task(ask(r, 0, 60)) for _ in range(20)]
        await until(lambda: len(questions) == 20)
        assert (await r.chat()).status == 200
        assert [await t for t in tasks] == ["1\n"] * 20


async def test_a_count_that_differs_already_is_answered_at_once(router: RouterFactory) -> None:
    async with router() as r:
        assert await ask(r, 7, 60) == "0\n", "also where the router began anew"


async def test_the_answer_comes_when_the_time_is_over(router: RouterFactory) -> None:
    async with router() as r:
        assert await ask(r, 0, 0.05) == "0\n"


async def test_waiting_clients_do_not_delay_the_end_of_the_router(router: RouterFactory, questions: list[int]) -> None:
    async with router() as r:
        task = asyncio.create_task(ask(r, 0, 60))
        await until(lambda: questions)
        await asyncio.wait_for(r.server.__aexit__(None, None, None), 5)
        assert await task == "0\n"


async def test_a_client_that_gives_up_does_not_end_the_wait_of_others() -> None:
    activity = Activity()
    leaves, stays = await waiting(activity, 2)
    leaves.cancel()
    await asyncio.wait({leaves})
    assert not stays.done()
    activity.arrived()
    assert await stays == 1


async def test_each_wait_is_for_what_comes_after_it() -> None:
    activity = Activity()
    (first,) = await waiting(activity, 1)
    activity.arrived()
    assert await first == 1
    (second,) = await waiting(activity, 1, since=1)
    activity.arrived()
    assert await second == 2


async def test_after_the_end_no_client_waits() -> None:
    activity = Activity()
    activity.close()
    assert await asyncio.wait_for(activity.other_than(0, 60), 1) == 0


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "since=0&seconds=30"),
        ("seconds=5", "'since' is no count"),
        ("since=-1&seconds=5", "'since' is no count"),
        ("since=1.5&seconds=5", "'since' is no count"),
        (f"since={'9' * 5000}&seconds=5", "'since' is no count"),
        ("since=1", "'seconds' is no duration"),
        ("since=1&seconds=soon", "'seconds' is no duration"),
        ("since=1&seconds=nan", "'seconds' is no duration"),
    ],
)
async def test_the_error_of_a_bad_query_says_what_to_write(router: RouterFactory, query: str, says: str) -> None:
    async with router() as r:
        reply = await r.admin(f"{PATH_ACTIVITY}?{query}")
    assert reply.status == 400
    assert says in reply.text
    assert "since=0&seconds=30" in reply.text


@pytest.mark.parametrize(("seconds", "waits"), [("5", 5), ("0.5", 0.5), ("-3", 0), ("61", 60), ("inf", 60)])
def test_a_wait_has_bounds(seconds: str, waits: float) -> None:
    assert read_query({"since": "3", "seconds": seconds}) == (3, waits)
