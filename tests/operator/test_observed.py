"""What is counted of a service's revisions, pods and GPUs."""

from __future__ import annotations

from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed, PodView, gpus_held
from phasewise_runtime import contract


def deployment(role: str, revision: str, replicas: int, gpus: int) -> Manifest:
    labels = {contract.LABEL_ROLE: role, contract.LABEL_REVISION: revision, contract.LABEL_GPUS: str(gpus)}
    meta = {"name": f"{role}-{revision}", "labels": labels}
    return {"kind": "Deployment", "metadata": meta, "spec": {"replicas": replicas}}


def pods(role: str, revision: str, count: int, gpus: int, deleting: int = 0) -> list[PodView]:
    return [
        PodView(f"{role}-{revision}-{n}", role, revision, ready=True, deleting=n < deleting, gpus=gpus)
        for n in range(count)
    ]


def seen(*children: Manifest, pods: list[PodView]) -> Observed:
    return Observed({(m["kind"], m["metadata"]["name"]): m for m in children}, tuple(pods))


def test_gpus_are_held_by_pods_of_all_revisions_and_by_replicas_that_are_to_become_pods() -> None:
    observed = seen(
        deployment("prefill", "new", 3, gpus=2),
        deployment("decode", "new", 1, gpus=4),
        deployment("router", "", 2, gpus=0),
        pods=[
            *pods("prefill", "new", 1, gpus=2),
            *pods("decode", "new", 2, gpus=4, deleting=1),
            *pods("decode", "removed", 2, gpus=1, deleting=2),
            *pods("router", "", 2, gpus=0),
        ],
    )
    held = {(r.role, r.revision): gpus_held([r]) for r in observed.revisions}
    assert held == {("prefill", "new"): 3 * 2, ("decode", "new"): 2 * 4, ("decode", "removed"): 2 * 1}
    assert gpus_held(observed.revisions) == 16


def test_a_revision_without_a_deployment_is_known_by_the_pods_that_are_left() -> None:
    (left,) = seen(pods=pods("decode", "removed", 2, gpus=1)).revisions
    assert (left.replicas, left.ready, left.pods, left.served) == (0, 0, 2, False)
