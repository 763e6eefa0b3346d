"""A worker on the fake API server, and a user who applies services to it."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from tests.operator.conftest import IMAGES
from tests.operator.reconcile.fake_api import KEY, Api, Apply, Loop

from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_operator.kube import Kube
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile.reconciler import Reconciler
from phasewise_operator.reconcile.status_writer import EventRecorder, StatusWriter
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.store import Key, Store


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def worker(api: Api) -> Worker:
    kube, store = cast("Kube", api), Store()
    status = StatusWriter(kube, store, EventRecorder(kube))
    return Worker(WorkQueue[Key](), Reconciler(kube, store, IMAGES, 300, Loop(), status), Metrics())


@pytest.fixture
def user_applies(api: Api, worker: Worker) -> Apply:
    """The user's apply, and the watch event of it."""

    def put(generation: int = 1, uid: str = "uid-s", **changes: Any) -> None:
        api.version += 1
        meta = {"name": "chat", "namespace": "default", "uid": uid, "generation": generation}
        spec: dict[str, Any] = {"model": {"uri": "hf://o/m"}, "slo": {"ttft": "1s", "itl": "1s"}, "decode": {}}
        before = api.objects.get(("InferenceService", "chat"), {})
        api.objects["InferenceService", "chat"] = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": "InferenceService",
            "metadata": {**meta, "resourceVersion": str(api.version)},
            "spec": {**spec, **changes},
            **({"status": before["status"]} if "status" in before else {}),
        }
        worker.reconciler.store.put(INFERENCE_SERVICE, copy.deepcopy(api.objects["InferenceService", "chat"]))
        worker.queue.add(KEY)

    return put
