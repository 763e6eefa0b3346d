"""What is known of a service's children and pods. Frozen; read by plan, report and the scaling loop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phasewise_operator.kinds import DEPLOYMENT, POD, Kind, Manifest
from phasewise_runtime import contract


@dataclass(frozen=True)
class Workload:
    """A live Deployment of ours."""

    name: str
    role: str
    revision: str
    fingerprint: str
    replicas: int
    ready: int
    available: int
    updated: int
    observed: bool
    """Its status speaks of its newest generation."""
    created: str
    gpus: int = 0
    """GPUs a replica."""
    served: bool = False
    """All its pods were available at least once: it is more than an attempt."""
    replica_failure: str = ""
    """Why its pods cannot be created: quota, admission."""
    desired: int | None = None
    """Size that the whole pool was to have when this was written last."""

    @classmethod
    def of(cls, live: Manifest) -> Workload:
        labels: Mapping[str, str] = live["metadata"].get("labels", {})
        spec, status = live.get("spec", {}), live.get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        failure = conditions.get("ReplicaFailure", {})
        progress = conditions.get("Progressing", {})
        return cls(
            name=live["metadata"]["name"],
            role=labels.get(contract.LABEL_ROLE, ""),
            revision=labels.get(contract.LABEL_REVISION, ""),
            fingerprint=labels.get(contract.LABEL_FINGERPRINT, ""),
            replicas=spec.get("replicas", 1),
            ready=status.get("readyReplicas", 0),
            available=status.get("availableReplicas", 0),
            updated=status.get("updatedReplicas", 0),
            observed=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0),
            created=live["metadata"].get("creationTimestamp", ""),
            gpus=int(labels.get(contract.LABEL_GPUS, "0")),
            served=progress.get("reason") == "NewReplicaSetAvailable",
            replica_failure=failure.get("message", "") if failure.get("status") == "True" else "",
            desired=_count(live["metadata"].get("annotations", {}).get(contract.ANNOTATION_DESIRED, "")),
        )


@dataclass(frozen=True)
class Ended:
    """A container's failure."""

    code: int
    reason: str
    """The kubelet's word, such as Error or OOMKilled."""
    message: str
    """The container's own last words."""


@dataclass(frozen=True)
class PodView:
    """What a pod says of itself, as far as a user's question "why not ready" needs it."""

    name: str
    role: str
    revision: str
    ready: bool
    deleting: bool
    uid: str = ""
    address: str = ""
    created: str = ""
    gpus: int = 0
    deletion_cost: str = ""
    """As annotated; the ReplicaSet controller takes the cheapest first."""
    unschedulable: str = ""
    """The scheduler's message."""
    waiting_reason: str = ""
    waiting_message: str = ""
    ended: Ended | None = None
    """How the container that failed last ended."""
    restarts: int = 0
    mount_error: str = ""
    """From the pod's Events: a volume that cannot be mounted shows nowhere in its status."""

    @classmethod
    def of(cls, live: Manifest, mount_error: str = "") -> PodView:
        labels: Mapping[str, str] = live["metadata"].get("labels", {})
        status = live.get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        scheduled = conditions.get("PodScheduled", {})
        waiting = _waiting(status)
        return cls(
            name=live["metadata"]["name"],
            role=labels.get(contract.LABEL_ROLE, ""),
            revision=labels.get(contract.LABEL_REVISION, ""),
            ready=conditions.get("Ready", {}).get("status") == "True",
            deleting="deletionTimestamp" in live["metadata"],
            uid=live["metadata"].get("uid", ""),
            address=status.get("podIP", ""),
            created=live["metadata"].get("creationTimestamp", ""),
            deletion_cost=live["metadata"].get("annotations", {}).get(contract.ANNOTATION_DELETION_COST, ""),
            gpus=int(labels.get(contract.LABEL_GPUS, "0")),
            unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
            waiting_reason=waiting.get("reason", ""),
            waiting_message=waiting.get("message", ""),
            ended=_ended(status),
            restarts=sum(c.get("restartCount", 0) for c in _container_statuses(status)),
            mount_error=mount_error,
        )


@dataclass(frozen=True)
class Observed:
    """Everything a pass knows. `children` are all labelled objects of ours that this very service owns."""

    children: Mapping[tuple[str, str], Manifest] = field(default_factory=dict[tuple[str, str], Manifest])
    """By kind and name."""
    pods: tuple[PodView, ...] = ()

    @classmethod
    def of(cls, live: Iterable[Manifest], uid: str, mount_errors: Mapping[str, str] | None = None) -> Observed:
        """From what the store has of a service: children that the service with `uid` owns, and all pods of its name."""
        errors = mount_errors or {}
        children: dict[tuple[str, str], Manifest] = {}
        pods: list[PodView] = []
        for one in live:
            name = one["metadata"]["name"]
            if one["kind"] != POD.name:
                if owner_uid(one) == uid:
                    children[one["kind"], name] = one
            elif not _holds_nothing(one):
                pods.append(PodView.of(one, errors.get(name, "")))
        return cls(children, tuple(pods))

    def child(self, kind: Kind, name: str) -> Manifest | None:
        return self.children.get((kind.name, name))

    @property
    def workloads(self) -> list[Workload]:
        """Oldest first."""
        found = [Workload.of(m) for (kind, _), m in self.children.items() if kind == DEPLOYMENT.name]
        return sorted(found, key=lambda w: (w.created, w.name))


@dataclass(frozen=True)
class Failure:
    """A child that could not be written. `refused`: trying again is of no use until something changes."""

    kind: str
    name: str
    reason: str
    message: str
    refused: bool


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def owner_uid(live: Manifest) -> str | None:
    """Uid of the controller of an object."""
    owners = live["metadata"].get("ownerReferences", [])
    return next((o["uid"] for o in owners if o.get("controller")), None)


def _holds_nothing(pod: Manifest) -> bool:
    """Evicted, or of a node that went: it holds nothing, and is replaced already."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def _container_statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _waiting(status: Mapping[str, Any]) -> Mapping[str, str]:
    """The first container that waits, but for one that merely waits for those before it."""
    states = [c.get("state", {}).get("waiting") for c in _container_statuses(status)]
    told: list[Mapping[str, str]] = [s for s in states if s]
    return next((s for s in told if s.get("reason") != "PodInitializing"), told[0] if told else {})


def _ended(status: Mapping[str, Any]) -> Ended | None:
    for container in _container_statuses(status):
        for state in (container.get("state", {}), container.get("lastState", {})):
            end = state.get("terminated")
            if end and end.get("exitCode") != 0:
                return Ended(end.get("exitCode", 0), end.get("reason", ""), str(end.get("message", "")).strip())
    return None
