"""What is known of a service's children and pods. Frozen; read by plan, rollout, report and the scaling loop. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    """Pods of the newest template."""
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
    """Size that the pool was to have, over all its revisions, when this was written last."""
    outdated: int = 0
    """Pods of an older template."""

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
            outdated=max(0, status.get("replicas", 0) - status.get("updatedReplicas", 0)),
            observed=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0),
            created=live["metadata"].get("creationTimestamp", ""),
            gpus=int(labels.get(contract.LABEL_GPUS, "0")),
            served=progress.get("reason") == "NewReplicaSetAvailable",
            replica_failure=failure.get("message", "") if failure.get("status") == "True" else "",
            desired=_count(live["metadata"].get("annotations", {}).get(contract.ANNOTATION_DESIRED, "")),
        )

    @property
    def current(self) -> int:
        """Pods that are ready and of the newest template, at the least: the status does not say which pods are ready,
        and those of an older template may be. 0 while the status is of an older generation."""
        return max(0, min(self.updated, self.ready - self.outdated)) if self.observed else 0


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
    """All its replicas were available at least once."""


def gpus_held(revisions: Iterable[RunningRevision]) -> int:
    """GPUs of pods that exist, terminating ones too, and of replicas whose pods are still to be created."""
    return sum(max(r.pods, r.replicas) * r.gpus for r in revisions)


@dataclass(frozen=True)
class Ended:
    """A container's failure."""

    code: int
    reason: str
    """The kubelet's word, such as Error or OOMKilled."""
    message: str
    """The container's own termination message."""


@dataclass(frozen=True)
class PodEvent:
    """An Event of a pod. Times as the API server writes them (RFC 3339, UTC); empty where it has none."""

    reason: str
    note: str
    first_seen: str = ""
    last_seen: str = ""

    @classmethod
    def of(cls, live: Manifest) -> PodEvent:
        """From events.k8s.io/v1. The kubelet records by the older API, whose times are in the deprecated fields."""
        time = live.get("eventTime") or ""
        return cls(
            live.get("reason", ""),
            live.get("note", ""),
            live.get("deprecatedFirstTimestamp") or time,
            live.get("series", {}).get("lastObservedTime") or live.get("deprecatedLastTimestamp") or time,
        )


@dataclass(frozen=True)
class PodView:
    """What a pod's status and Events say, as far as the question "why is it not ready" needs it."""

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
    """How the first container with a failure ended."""
    restarts: int = 0
    events: tuple[PodEvent, ...] = ()
    """Oldest first. They are read only of pods with a container that is still being created."""

    @classmethod
    def of(cls, live: Manifest, events: Sequence[PodEvent] = ()) -> PodView:
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
            restarts=sum(c.get("restartCount", 0) for c in container_statuses(status)),
            events=tuple(events),
        )


@dataclass(frozen=True)
class Observed:
    """All that a pass knows. `children` are the labelled objects that the service with its uid owns."""

    children: Mapping[tuple[str, str], Manifest] = field(default_factory=dict[tuple[str, str], Manifest])
    """By kind and name."""
    pods: tuple[PodView, ...] = ()

    @classmethod
    def of(cls, live: Iterable[Manifest], uid: str, events: Mapping[str, Sequence[PodEvent]] | None = None) -> Observed:
        """From what the store has of a service: children that the service with `uid` owns, and all pods of its name.

        `events`: of pods, by pod name.
        """
        children: dict[tuple[str, str], Manifest] = {}
        pods: list[PodView] = []
        for manifest in live:
            name = manifest["metadata"]["name"]
            if manifest["kind"] != POD.name:
                if owner_uid(manifest) == uid:
                    children[manifest["kind"], name] = manifest
            elif not _has_ended(manifest):
                pods.append(PodView.of(manifest, (events or {}).get(name, ())))
        return cls(children, tuple(pods))

    def child(self, kind: Kind, name: str) -> Manifest | None:
        return self.children.get((kind.name, name))

    @property
    def workloads(self) -> list[Workload]:
        """Oldest first."""
        found = [Workload.of(m) for (kind, _), m in self.children.items() if kind == DEPLOYMENT.name]
        return sorted(found, key=lambda w: (w.created, w.name))

    @property
    def revisions(self) -> list[RunningRevision]:
        """Every revision of an engine role that has a Deployment or still has pods."""
        pods = [p for p in self.pods if p.role in contract.ENGINE_ROLES]
        count = Counter((p.role, p.revision) for p in pods)
        found = {
            (w.role, w.revision): RunningRevision(
                w.role, w.revision, w.fingerprint, w.replicas, w.ready, count[w.role, w.revision], w.gpus, w.served
            )
            for w in self.workloads
            if w.role in contract.ENGINE_ROLES
        }
        for p in pods:
            left = RunningRevision(p.role, p.revision, "", 0, 0, count[p.role, p.revision], p.gpus, served=False)
            found.setdefault((p.role, p.revision), left)
        return list(found.values())


@dataclass(frozen=True)
class Failure:
    """A child that could not be written or deleted. `refused`: trying again is of no use until something changes."""

    kind: str
    name: str
    reason: str
    message: str
    refused: bool
    count: int = 1
    """How often in a row."""


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def owner_uid(live: Manifest) -> str | None:
    """Uid of the controller of an object."""
    owners = live["metadata"].get("ownerReferences", [])
    return next((o["uid"] for o in owners if o.get("controller")), None)


def _has_ended(pod: Manifest) -> bool:
    """Evicted, or its node is gone: it holds no resources any more, and is replaced already."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def container_statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _waiting(status: Mapping[str, Any]) -> Mapping[str, str]:
    """The first container that waits; one that waits for the containers before it only if there is no other."""
    states = [c.get("state", {}).get("waiting") for c in container_statuses(status)]
    waiting: list[Mapping[str, str]] = [s for s in states if s]
    return next((s for s in waiting if s.get("reason") != "PodInitializing"), waiting[0] if waiting else {})


def _ended(status: Mapping[str, Any]) -> Ended | None:
    for container in container_statuses(status):
        for state in (container.get("state", {}), container.get("lastState", {})):
            end = state.get("terminated")
            if end and end.get("exitCode") != 0:
                return Ended(end.get("exitCode", 0), end.get("reason", ""), str(end.get("message", "")).strip())
    return None
