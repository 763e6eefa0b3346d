"""Which revision of a pool the status names as the one that serves, through rollouts."""

from __future__ import annotations

import pytest

from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.status import observed_revision
from phasewise_runtime import contract


def workload(revision: str, replicas: int, ready: int, created: int) -> Manifest:
    labels = {contract.LABEL_ROLE: "decode", contract.LABEL_REVISION: revision}
    meta = {"name": revision, "labels": labels, "creationTimestamp": f"2026-01-0{created}T00:00:00Z"}
    state = {"readyReplicas": ready, "updatedReplicas": replicas}
    return {"kind": "Deployment", "metadata": meta, "spec": {"replicas": replicas}, "status": state}


OLD, OLD_UNREADY = workload("old", 2, 2, 1), workload("old", 2, 1, 1)


@pytest.mark.parametrize(
    ("workloads", "before", "expected"),
    [
        ([workload("new", 2, 0, 2)], None, None),
        ([workload("new", 2, 1, 2)], None, "new"),
        ([workload("new", 6, 2, 2)], "old", "new"),
        ([workload("new", 2, 2, 2)], None, "new"),
        ([workload("new", 3, 2, 2)], "new", "new"),
        ([OLD, workload("new", 2, 1, 2)], "old", "old"),
        ([OLD_UNREADY, workload("new", 2, 1, 2)], "old", "old"),
        ([OLD, workload("new", 2, 1, 2)], None, "old"),
        ([OLD, workload("new", 0, 0, 2)], "old", "old"),
        ([workload("new", 0, 0, 2)], "old", "old"),
        ([OLD, workload("new", 2, 2, 2)], "old", "new"),
        ([workload("new", 1, 1, 1), workload("old", 2, 2, 2)], "old", "new"),
        ([], None, None),
    ],
    ids=[
        "the first is not ready yet",
        "the first is ready in part",
        "the pool grew during the rollout, and the old has gone",
        "the first is ready",
        "a pool that grows",
        "in mid-rollout the old",
        "which may be unready for a moment",
        "in mid-rollout, and nothing was reported before",
        "a revision of no replicas serves nobody",
        "the old went first",
        "the new is ready",
        "a change that was taken back",
        "nothing is there",
    ],
)
def test_the_revision_that_serves(workloads: list[Manifest], before: str | None, expected: str | None) -> None:
    observed = Observed({("Deployment", m["metadata"]["name"]): m for m in workloads})
    assert observed_revision(observed, "decode", "new", before) == expected
