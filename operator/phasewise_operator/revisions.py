"""The revisions of a service's engine roles that run, from its Deployments and pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phasewise_operator.observed import Observed, PodView, Workload
from phasewise_runtime import contract


@dataclass(frozen=True)
class RunningRevision:
    """A revision of an engine role that runs: a Deployment, or (replicas 0) the pods that are left of one."""

    role: str
    revision: str
    fingerprint: str
    replicas: int
    ready: int
    pods: int
    """Pods that exist, terminating ones too: they hold their GPUs until they are gone."""
    gpus: int
    """GPUs a pod."""
    served: bool
    """Its pods have served, together with those of the other pool: it is more than an attempt."""
    available: int = 0
    """Pods that have been ready for a while."""
    terminating: int = 0
    surge: int = 0
    """Pods that a rolling update of its Deployment may still add."""
    unschedulable: int = 0
    """Pods for which the scheduler finds no node."""
    aggregated: bool = False
    """Its decode pods do both phases: there is no prefill pool beside them."""
    proved: int | None = None
    """Of the available pods those that have handed KV over, at the least; None: nobody can say."""
    leaving: int = 0
    """Pods that are ready, on nodes that are drained."""
    leaving_proved: int = 0
    """Of these those that have handed KV over, or all where nobody can say."""
    planned: bool = False
    """The size of its pool was last given to it: what the spec asked for, or what a failed rollout turned back to."""


def gpus_held(revisions: Iterable[RunningRevision]) -> int:
    """GPUs of pods that exist, terminating ones too, and of replicas whose pods are still to be created."""
    return sum((r.terminating + max(r.pods - r.terminating, r.replicas)) * r.gpus for r in revisions)


def running_revisions(observed: Observed, proved: frozenset[str] | None = None) -> list[RunningRevision]:
    """Every revision of an engine role that has a Deployment or still has pods. `proved`: names of the pods that have
    handed KV over, as the routers say; None: they say nothing of it."""
    pods: dict[tuple[str, str], list[PodView]] = {}
    for pod in observed.pods:
        pods.setdefault((pod.role, pod.revision), []).append(pod)
    # Before the first rollout nothing is recorded, since that would take a write of its own.
    recorded = any(w.served for w in observed.workloads)
    found = {
        (w.role, w.revision): _of_deployment(
            w, pods.get((w.role, w.revision), []), w.served if recorded else w.complete, proved
        )
        for w in observed.workloads
    }
    left = {key: _without_deployment(key, mine) for key, mine in pods.items() if key not in found}
    return [r for r in (*found.values(), *left.values()) if r.role in contract.ENGINE_ROLES]


def _of_deployment(
    workload: Workload, pods: Sequence[PodView], served: bool, proved: frozenset[str] | None
) -> RunningRevision:
    leaving = [p for p in pods if p.cordoned and p.ready and not p.deleting]
    proved = None if workload.aggregated else proved
    return RunningRevision(
        role=workload.role,
        revision=workload.revision,
        fingerprint=workload.fingerprint,
        replicas=workload.replicas,
        ready=workload.ready,
        pods=len(pods),
        gpus=workload.gpus,
        served=served,
        available=workload.available,
        terminating=sum(p.deleting for p in pods),
        surge=workload.surge,
        unschedulable=sum(bool(p.unschedulable) and not p.deleting for p in pods),
        aggregated=workload.aggregated,
        proved=None if proved is None else _proved(workload.available, pods, proved),
        leaving=len(leaving),
        leaving_proved=sum(proved is None or p.name in proved for p in leaving),
        planned=workload.desired is not None,
    )


def _proved(available: int, pods: Sequence[PodView], proved: frozenset[str]) -> int:
    """A Deployment says how many of its ready pods are available, and not which: those that are not yet may be among
    the proved ones."""
    ready = [p.name in proved for p in pods if p.ready and not p.deleting]
    return max(0, min(available, sum(ready), available + sum(ready) - len(ready)))


def _without_deployment(key: tuple[str, str], pods: Sequence[PodView]) -> RunningRevision:
    """The garbage collector deletes them: none of them stays."""
    gpus = max(p.gpus for p in pods)
    return RunningRevision(*key, "", 0, 0, len(pods), gpus, served=False, terminating=len(pods))
