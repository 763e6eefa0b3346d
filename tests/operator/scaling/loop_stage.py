"""A scaling loop on pods that are servers on loopback addresses."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from tests.operator.conftest import until as wait_until
from tests.operator.scaling.fake_pods import FakePod

from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_operator.queue import WorkQueue
from phasewise_operator.scaling.loop import Loop
from phasewise_operator.scaling.signals.kv_evidence import KvEvidence
from phasewise_operator.scaling.types import Recommendation
from phasewise_operator.store import Key, Store
from phasewise_runtime import contract

KEY: Key = ("default", "chat")
until = functools.partial(wait_until, seconds=12.0)
ADDRESSES = {"router": "127.0.0.11", "prefill": "127.0.0.12", "decode": "127.0.0.13"}

BOTH = frozenset({"prefill-0", "decode-0"})


def service(generation: int = 1, uid: str = "s", **scaling: Any) -> dict[str, Any]:
    pool = {"replicas": {"min": 1, "max": 4}}
    slo = {"ttft": "1s", "itl": "100ms"}
    spec = {"model": {"uri": "hf://o/m"}, "slo": slo, "prefill": pool, "decode": pool, "scaling": scaling}
    live = INFERENCE_SERVICE.identity("default", "chat", uid)
    live["metadata"] |= {"generation": generation, "resourceVersion": str(generation)}
    return {**live, "spec": spec}


def child(name: str, role: str, **more: Any) -> dict[str, Any]:
    labels = {contract.LABEL_SERVICE: "chat", contract.LABEL_ROLE: role}
    owner = {"controller": True, "uid": "s"}
    meta = {"namespace": "default", "name": name, "uid": name, "resourceVersion": "1", "labels": labels}
    return {"metadata": {**meta, "ownerReferences": [owner], **more.pop("metadata", {})}, **more}


@dataclass
class Stage:
    loop: Loop
    store: Store
    queue: WorkQueue[Key]
    pods: dict[str, FakePod]

    def apply(self, live: dict[str, Any]) -> None:
        self.store.put(INFERENCE_SERVICE, live)
        self.loop.service_changed(KEY)

    @property
    def evidence(self) -> KvEvidence:
        return self.loop.kv_evidence(KEY, "s")

    def routers_say(self, **flows: bool) -> None:
        """Of prefill-0 and decode-0; before that the router is of a version that proves no pods."""
        lines = self.pods["router"].lines
        lines |= {f'{contract.METRIC_KV_PATHS}{{state="{state}"}}': 0.0 for state in contract.KV_PATH_STATES}
        for role, works in flows.items():
            lines[f'{contract.METRIC_KV_TRANSFER_OK}{{pod="{role}-0"}}'] = float(works)
        failed = f'{contract.METRIC_KV_FAILED_PATH}{{prefill="prefill-0",decode="decode-0",reason="recomputed"}}'
        lines[failed] = float(bool(flows) and not all(flows.values()))

    @property
    def recommendation(self) -> Recommendation:
        return self.loop.recommendation(KEY, "s")


def reasons(stage: Stage) -> set[str]:
    return {d.reason for d in stage.recommendation.decisions.values()}
