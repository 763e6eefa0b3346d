"""A child that another writer overwrites without end is left as it is for a while; the status names both."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.lease_server import Clock
from tests.operator.reconcile.fake_api import KEY, Api, Apply, condition, one_pass

from phasewise_operator.kinds import SERVICE, Manifest
from phasewise_operator.reconcile.contention import APPLIES, Contention, other_writer
from phasewise_operator.reconcile.worker import Worker
from phasewise_runtime import contract


def intent(port: int = 80) -> Manifest:
    return {**SERVICE.manifest("chat", spec={"port": port}), "metadata": {"name": "chat", "namespace": "default"}}


class Fight:
    """`apply`: whether the child may be applied now."""

    def __init__(self, api: Api) -> None:
        self.clock = Clock()
        self.api: Any = api
        self.contention = Contention(self.clock)

    async def apply(self, manifest: Manifest | None = None) -> bool:
        may = await self.contention.check(self.api, manifest or intent()) is None
        if may:
            self.contention.applied(manifest or intent())
        return may

    async def apply_after(self, seconds: float) -> bool:
        self.clock.now += seconds
        return await self.apply()


@pytest.fixture
def fight() -> Fight:
    return Fight(Api())


async def test_a_child_is_applied_ten_times_a_minute_and_then_left_for_a_minute(fight: Fight) -> None:
    assert [await fight.apply() for _ in range(APPLIES + 2)] == [True] * APPLIES + [False, False]
    assert not await fight.apply_after(59)


async def test_the_pause_doubles_while_the_other_goes_on(fight: Fight) -> None:
    for _ in range(APPLIES + 1):
        await fight.apply()
    assert await fight.apply_after(60), "a single try"
    assert not await fight.apply_after(1)
    assert not await fight.apply_after(119)
    assert await fight.apply_after(1)
    for _ in range(10):
        assert not await fight.apply_after(1)
        assert await fight.apply_after(960)
    assert not await fight.apply_after(1)
    assert not await fight.apply_after(959)
    assert await fight.apply_after(1), "no pause is longer than 16 minutes"


async def test_a_child_that_stays_as_it_is_for_a_minute_is_as_before(fight: Fight) -> None:
    for _ in range(APPLIES + 1):
        await fight.apply()
    assert await fight.apply_after(60)
    assert await fight.apply_after(60)
    assert [await fight.apply() for _ in range(APPLIES)] == [True] * (APPLIES - 1) + [False]


async def test_a_child_that_is_gone_each_time_is_said_to_be_deleted(fight: Fight) -> None:
    for _ in range(APPLIES):
        await fight.apply()
    failure = await fight.contention.check(fight.api, intent())
    assert failure is not None
    assert failure.message.startswith("somebody deletes it each time")
    assert fight.contention.held_back(intent()) == failure
    assert fight.contention.held_back(intent(port=81)) is None


async def test_slow_repairs_are_no_contention(fight: Fight) -> None:
    assert all([await fight.apply_after(6) for _ in range(100)])


async def test_a_change_of_what_is_applied_ends_the_pause(fight: Fight) -> None:
    for _ in range(APPLIES + 1):
        await fight.apply()
    assert await fight.apply(intent(port=81))


@pytest.mark.parametrize(
    ("entries", "who"),
    [
        pytest.param([], "another operator of Phasewise", id="nobody else"),
        pytest.param([("helm", "", "1"), ("argocd", "", "3"), ("x", "", "2")], "field manager argocd", id="the newest"),
        pytest.param([("kubelet", "status", "9")], "another operator of Phasewise", id="a status"),
        pytest.param([("hpa", "scale", "9")], "field manager hpa", id="scale"),
    ],
)
def test_the_other_writer_is_named(entries: list[tuple[str, str, str]], who: str) -> None:
    managed = [{"manager": m, "subresource": s, "time": t} for m, s, t in entries]
    managed.append({"manager": contract.FIELD_MANAGER, "subresource": "", "time": "8"})
    assert other_writer({"metadata": {"managedFields": managed}}).startswith(who)


async def test_the_status_says_who_contends_for_which_child(
    api: Api, worker: Worker, user_applies: Apply, caplog: pytest.LogCaptureFixture
) -> None:
    user_applies()
    await one_pass(worker)
    api.writes.clear()
    for _ in range(30):
        api.objects["Service", "chat"]["metadata"]["managedFields"] = [{"manager": "argocd", "operation": "Update"}]
        worker.reconciler.store.put(SERVICE, api.objects["Service", "chat"])
        worker.queue.add(KEY)
        await one_pass(worker)
    assert api.writes.count("Service chat") == APPLIES - 1, "it was applied once before"
    assert condition(api, "Stalled") == ("True", "Contended")
    (stalled,) = [c for c in api.objects["InferenceService", "chat"]["status"]["conditions"] if c["type"] == "Stalled"]
    assert "Service chat: field manager argocd overwrites it" in stalled["message"]
    assert caplog.text.count("overwrites it each time") == 1
