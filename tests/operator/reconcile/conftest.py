"""A controller on the small API, and the user before it."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from tests.operator.reconcile.fake_api import KEY, Api, Apply, Loop

from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_operator.kube import Kube
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile.controller import Controller
from phasewise_operator.render.context import Images
from phasewise_operator.store import Key, Store


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def controller(api: Api) -> Controller:
    images = Images("phasewise/runtime:1", "vllm/vllm-openai:1", "IfNotPresent")
    return Controller(cast("Kube", api), Store(), WorkQueue[Key](), images, Metrics(), 300, Loop())


@pytest.fixture
def user_applies(api: Api, controller: Controller) -> Apply:
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
        controller.store.put(INFERENCE_SERVICE, copy.deepcopy(api.objects["InferenceService", "chat"]))
        controller.queue.add(KEY)

    return put
