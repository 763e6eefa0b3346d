"""The work queue's promises: once in the queue, one worker a key, and back after a failure."""

from __future__ import annotations

import asyncio

import pytest

from phasewise_operator import queue as queue_module
from phasewise_operator.queue import WorkQueue


async def take(queue: WorkQueue[str]) -> str:
    async with asyncio.timeout(5):
        return await queue.get()


async def test_a_key_added_twice_is_handled_once() -> None:
    queue = WorkQueue[str]()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert [await take(queue), await take(queue)] == ["a", "b"]
    assert len(queue) == 2


async def test_a_key_added_while_it_is_handled_is_handled_once_more_and_never_twice_at_a_time() -> None:
    queue = WorkQueue[str]()
    queue.add("a")
    key = await take(queue)
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert await take(queue) == "b"
    queue.done(key)
    assert await take(queue) == "a"
    queue.done("a")
    queue.done("b")
    assert len(queue) == 0


async def test_a_failed_key_comes_back_after_pauses_that_double_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "FIRST_BACKOFF", 0.001)
    monkeypatch.setattr(queue_module, "LONGEST_BACKOFF", 0.004)
    queue = WorkQueue[str]()
    queue.add("a")
    pauses = [queue.failed(await take(queue)) for _ in range(5)]
    assert pauses == [0.001, 0.002, 0.004, 0.004, 0.004]
    queue.done(await take(queue))
    queue.add("a")
    assert queue.failed(await take(queue)) == 0.001, "success forgets the failures"


async def test_adding_now_overtakes_a_later_time() -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 3600)
    queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_of_two_later_times_the_sooner_holds() -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.001)
    queue.add_after("a", 3600)
    assert await take(queue) == "a"


async def test_groups_take_turns_and_within_a_group_the_first_comes_first() -> None:
    queue = WorkQueue[tuple[str, int]](group=lambda key: key[0])
    for key in (("big", 1), ("big", 2), ("big", 3), ("small", 1), ("big", 4), ("other", 1)):
        queue.add(key)
    taken = [await queue.get() for _ in range(6)]
    assert taken == [("big", 1), ("small", 1), ("other", 1), ("big", 2), ("big", 3), ("big", 4)]


async def test_a_worker_that_is_cancelled_while_it_waits_takes_no_key() -> None:
    queue = WorkQueue[str]()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    queue.add("a")
    assert await take(queue) == "a"
