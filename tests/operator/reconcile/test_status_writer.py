"""When a status is written, and which Events are recorded of it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.operator.reconcile.fake_api import KEY, Api, Apply

from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.kinds import Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.reconcile.conditions import ConditionUpdate
from phasewise_operator.reconcile.status import PROGRESS_SECONDS
from phasewise_operator.reconcile.status_writer import EVENT_SECONDS, EventRecorder, StatusWriter
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.scaling.types import FIGURES_SECONDS
from phasewise_operator.store import Store

NOW = "2026-01-02T03:04:05Z"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def writer(api: Api, clock: Clock) -> StatusWriter:
    kube = cast("Kube", api)
    return StatusWriter(kube, Store(), EventRecorder(kube, clock=clock), clock=clock)


@pytest.fixture
def live(api: Api, user_applies: Apply) -> Manifest:
    user_applies()
    return api.objects["InferenceService", "chat"]


def measured(ttft: str) -> dict[str, Any]:
    return {"slo": {"ttft": {"target": "1s", "measured": ttft}}}


async def test_figures_alone_are_held_back_and_the_writer_says_for_how_long(
    api: Api, writer: StatusWriter, live: Manifest, clock: Clock
) -> None:
    assert await writer.write(live, measured("100ms"), [], NOW) is None
    clock.now += 10
    held_back = await writer.write(live, measured("300ms"), [], NOW)
    assert held_back == pytest.approx(FIGURES_SECONDS - 10 + 0.1)
    assert live["status"] == measured("100ms")
    clock.now += held_back or 0
    assert await writer.write(live, measured("300ms"), [], NOW) is None
    assert live["status"] == measured("300ms")


def starting(ready: int, reason: str = "ReplicasStarting", **fields: Any) -> dict[str, Any]:
    """The status of a service of which some pods are ready."""
    message = f"prefill: {ready} of 3 replicas are ready"
    pool = {"desired": 3, "ready": ready, "pending": 3 - ready, "summary": f"{ready}/3", **fields}
    types = {"Ready": reason, "PrefillReady": "ReplicasReady" if ready == 3 else reason, "Stalled": "Progressing"}
    found = [{"type": t, "status": "False", "reason": r, "message": message} for t, r in types.items()]
    return {"observedGeneration": 1, "prefill": pool, "conditions": found}


async def test_the_progress_of_a_start_is_held_a_moment(
    api: Api, writer: StatusWriter, live: Manifest, clock: Clock
) -> None:
    for count in (0, 1, 2, 3):
        held_back = await writer.write(live, starting(count), [], NOW)
        clock.now += 1.0
    assert api.writes == ["InferenceService chat status"], "the first at once, the rest later"
    assert held_back == pytest.approx(PROGRESS_SECONDS - 3.0 + 0.1)
    clock.now += held_back or 0
    await writer.write(live, starting(3), [], NOW)
    assert live["status"] == starting(3)


async def test_conditions_of_others_do_not_make_more_of_the_progress_of_a_start(
    api: Api, writer: StatusWriter, live: Manifest, clock: Clock
) -> None:
    await writer.write(live, starting(0), [], NOW)
    live["status"]["conditions"].append({"type": "example.com/Audited", "status": "True", "reason": "A", "message": ""})
    clock.now += 1.0
    assert await writer.write(live, starting(1), [], NOW) == pytest.approx(PROGRESS_SECONDS - 1.0 + 0.1)


AT_ONCE = {
    "ready": starting(3, reason="Serving"),
    "a failure": starting(1, reason="ImageUnavailable"),
    "another size": starting(1, desired=4),
    "a new spec": {**starting(1), "observedGeneration": 2},
}


@pytest.mark.parametrize("status", AT_ONCE.values(), ids=AT_ONCE)
async def test_what_is_more_than_progress_is_written_at_once(
    status: dict[str, Any], api: Api, writer: StatusWriter, live: Manifest, clock: Clock
) -> None:
    await writer.write(live, starting(1), [], NOW)
    clock.now += 0.1
    assert await writer.write(live, status, [], NOW) is None
    assert live["status"] == status


@pytest.mark.parametrize(("status", "raises"), [(404, False), (409, False), (500, True)])
async def test_a_service_that_was_deleted_meanwhile_gets_no_status(
    status: int, raises: bool, api: Api, writer: StatusWriter, live: Manifest
) -> None:
    api.faults["status"] = KubeError(status, "", "")
    if raises:
        with pytest.raises(KubeError):
            await writer.write(live, measured("100ms"), [], NOW)
    else:
        assert await writer.write(live, measured("100ms"), [], NOW) is None
    assert writer.last_write == {}


async def test_an_event_about_scaling_is_recorded_again_only_after_a_while(
    api: Api, writer: StatusWriter, live: Manifest, clock: Clock
) -> None:
    limited = ConditionUpdate("ScalingLimited", ConditionStatus.TRUE, "AtMaximum", "raise it")
    stalled = ConditionUpdate("Stalled", ConditionStatus.TRUE, "InvalidSpec", "write it so")
    for seconds, expected in (
        (0.0, ["Event AtMaximum", "Event InvalidSpec"]),
        (EVENT_SECONDS / 2, ["Event InvalidSpec"]),
        (EVENT_SECONDS, ["Event AtMaximum", "Event InvalidSpec"]),
    ):
        clock.now += seconds
        api.writes.clear()
        await writer.recorder.record(live, {}, {}, [limited, stalled], NOW)
        assert api.writes == expected


async def test_the_memory_of_a_service_is_dropped_with_it(writer: StatusWriter, live: Manifest, worker: Worker) -> None:
    limited = ConditionUpdate("ScalingLimited", ConditionStatus.TRUE, "AtMaximum", "raise it")
    await writer.write(live, measured("100ms"), [limited], NOW)
    assert (len(writer.last_write), len(writer.recorder.event_times)) == (1, 1)
    writer.forget(KEY)
    assert (len(writer.last_write), len(writer.recorder.event_times)) == (0, 0)
