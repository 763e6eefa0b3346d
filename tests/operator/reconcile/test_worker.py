"""What becomes of a service's key after a pass, by the result of the pass."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.operator.reconcile.fake_api import KEY, Api, Apply, condition, one_pass

from phasewise_operator import queue as queue_module
from phasewise_operator.kinds import INFERENCE_SERVICE, SERVICE
from phasewise_operator.kube_errors import KubeError, NotLeadingError
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile.failures import FIRST_SECONDS
from phasewise_operator.reconcile.reconciler import PENDING_SECONDS, Reconciler, Result
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.store import Key


class RecordingQueue(WorkQueue[Key]):
    """Records what is asked of it, and in how many seconds keys come back."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.after: list[float] = []

    def done(self, key: Key) -> None:
        self.asked.append("done")
        super().done(key)

    def failed(self, key: Key) -> float:
        self.asked.append("failed")
        return super().failed(key)

    def add_after(self, key: Key, seconds: float) -> None:
        self.after.append(seconds)
        super().add_after(key, seconds)


class FixedReconciler:
    """Every pass has the same result, or raises."""

    def __init__(self, result: Result | Exception) -> None:
        self.result = result
        self.internal_errors = 0

    async def reconcile(self, key: Key) -> Result:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def report_internal_error(self, key: Key) -> None:
        self.internal_errors += 1


def worker_of(result: Result | Exception) -> tuple[Worker, RecordingQueue, FixedReconciler]:
    queue, reconciler = RecordingQueue(), FixedReconciler(result)
    queue.add(KEY)
    return Worker(queue, cast("Reconciler", reconciler), Metrics()), queue, reconciler


RESULTS: list[tuple[Result | Exception, str, str, list[float]]] = [
    (Result(), "ok", "done", []),
    (Result(requeue_after=0.0), "ok", "done", [0.0]),
    (Result(requeue_after=300.0), "ok", "done", [300.0]),
    (Result(complete=False, requeue_after=30.0), "incomplete", "done", [30.0]),
    (KubeError(500, "InternalError", "etcd is slow"), "error", "failed", [queue_module.FIRST_BACKOFF]),
    (ValueError("a defect"), "error", "failed", [queue_module.FIRST_BACKOFF]),
]


@pytest.mark.parametrize(("result", "outcome", "asked", "after"), RESULTS)
async def test_the_result_decides_when_the_key_comes_back(
    result: Result | Exception, outcome: str, asked: str, after: list[float]
) -> None:
    worker, queue, _ = worker_of(result)
    assert await worker.process_next() == outcome
    assert (queue.asked, queue.after) == ([asked], after)
    assert worker.metrics.reconciles.labels(outcome)._value.get() == 1


async def test_only_a_defect_is_reported_as_an_internal_error() -> None:
    for error, reported in ((ValueError("a defect"), 1), (KubeError(500, "", ""), 0)):
        worker, _, reconciler = worker_of(error)
        await worker.process_next()
        assert reconciler.internal_errors == reported


async def test_a_defect_in_reporting_a_defect_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's end would be the term's end: no service would be acted on any more."""
    worker, queue, reconciler = worker_of(ValueError("a defect"))
    monkeypatch.setattr(reconciler, "report_internal_error", lambda _: 1 / 0)
    assert await worker.process_next() == "error"
    assert queue.asked == ["failed"]


async def test_an_operator_that_does_not_lead_stops_and_keeps_the_key() -> None:
    worker, queue, _ = worker_of(NotLeadingError("x"))
    with pytest.raises(NotLeadingError):
        await worker.run()
    assert queue.asked == ["failed"]


async def test_a_defect_is_shown_in_the_status(
    api: Api, worker: Worker, user_applies: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_applies()
    monkeypatch.setattr(api, "get", lambda *_: 1 / 0)
    assert await worker.process_next() == "error"
    assert condition(api, "Stalled") == ("True", "InternalError")


async def test_a_service_that_is_not_settled_is_reconciled_again_soon(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    assert (await worker.reconciler.reconcile(KEY)).requeue_after == PENDING_SECONDS
    api.faults["Service"] = KubeError(422, "Invalid", "")
    worker.reconciler.store.drop(SERVICE, api.objects.pop(("Service", "chat")))
    result = await worker.reconciler.reconcile(KEY)
    assert result.complete is False
    assert result.requeue_after == pytest.approx(FIRST_SECONDS, abs=0.1)


async def test_a_service_that_is_gone_is_forgotten(api: Api, worker: Worker, user_applies: Apply) -> None:
    user_applies()
    assert await one_pass(worker)
    assert KEY in worker.reconciler.status.last_write
    worker.reconciler.store.drop(INFERENCE_SERVICE, api.objects["InferenceService", "chat"])
    assert await worker.reconciler.reconcile(KEY) == Result()
    assert KEY not in worker.reconciler.status.last_write


async def test_passes_without_a_wait_in_them_let_others_run_in_between() -> None:
    """Such as those over a thousand services in which an operator that begins finds nothing to do."""
    worker, queue, _ = worker_of(Result())
    for n in range(10):
        queue.add(("default", f"chat-{n}"))
    running = asyncio.create_task(worker.run())
    turns = 0
    while queue.asked.count("done") < 11:
        await asyncio.sleep(0)
        turns += 1
    running.cancel()
    assert turns >= 10
