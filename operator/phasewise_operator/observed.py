"""What is known of a service's children and pods. Frozen; read by plan, rollout, report and the scaling loop. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from phasewise_operator.kinds import DEPLOYMENT, POD, Kind, Manifest
from phasewise_operator.live_values import by_type, count, mapping, mappings, number, text
from phasewise_operator.trim import is_our_apply
from phasewise_runtime import contract

AGGREGATED: Final = "prefill-decode"
"""Value of the label LABEL_LLMD_ROLE of pods that do both phases."""


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
    """It is recorded that its pods have served, together with those of the other pool."""
    complete: bool = False
    """All its pods have been available at once, whatever the other pool did."""
    surge: int = 0
    """Pods that a rolling update under way may add."""
    aggregated: bool = False
    """Its pods do both phases."""
    replica_failure: str = ""
    """Why its pods cannot be created: quota, admission."""
    desired: int | None = None
    """Size that the pool was to have, over all its revisions, when this was written last."""
    outdated: int = 0
    """Pods of an older template."""

    @classmethod
    def of(cls, live: Manifest) -> Workload:
        meta, spec, status = live["metadata"], mapping(live.get("spec")), mapping(live.get("status"))
        labels, conditions = _labels(meta, spec), by_type(status.get("conditions"))
        failure, progress = conditions.get("ReplicaFailure", {}), conditions.get("Progressing", {})
        replicas = number(spec.get("replicas"), default=1)
        updated = number(status.get("updatedReplicas"))
        outdated = max(0, number(status.get("replicas")) - updated)
        rolling = mapping(mapping(spec.get("strategy")).get("rollingUpdate"))
        return cls(
            name=meta["name"],
            role=text(labels.get(contract.LABEL_ROLE)),
            revision=text(labels.get(contract.LABEL_REVISION)),
            fingerprint=text(labels.get(contract.LABEL_FINGERPRINT)),
            replicas=replicas,
            ready=number(status.get("readyReplicas")),
            available=number(status.get("availableReplicas")),
            updated=updated,
            outdated=outdated,
            observed=number(status.get("observedGeneration")) >= number(meta.get("generation")),
            created=text(meta.get("creationTimestamp")),
            gpus=count(labels.get(contract.LABEL_GPUS)) or 0,
            served=contract.ANNOTATION_SERVED in mapping(meta.get("annotations")),
            complete=replicas > 0 and progress.get("reason") == "NewReplicaSetAvailable",
            surge=number(rolling.get("maxSurge")) if outdated else 0,
            aggregated=labels.get(contract.LABEL_LLMD_ROLE) == AGGREGATED,
            replica_failure=text(failure.get("message")) if failure.get("status") == "True" else "",
            desired=count(mapping(meta.get("annotations")).get(contract.ANNOTATION_DESIRED)),
        )

    @property
    def current(self) -> int:
        """Pods that are ready and of the newest template, at the least: the status does not say which pods are ready,
        and those of an older template may be. 0 while the status is of an older generation."""
        return max(0, min(self.updated, self.ready - self.outdated)) if self.observed else 0


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
        time, last = text(live.get("eventTime")), mapping(live.get("series")).get("lastObservedTime")
        return cls(
            text(live.get("reason")),
            text(live.get("note")),
            text(live.get("deprecatedFirstTimestamp")) or time,
            text(last) or text(live.get("deprecatedLastTimestamp")) or time,
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
    cordoned: bool = False
    """Its node takes no new pods: it is drained, or soon will be."""
    waiting_reason: str = ""
    waiting_message: str = ""
    ended: Ended | None = None
    """How the first container with a failure ended."""
    restarts: int = 0
    events: tuple[PodEvent, ...] = ()
    """Oldest first. They are read only of pods with a container that is still being created."""

    @classmethod
    def of(cls, live: Manifest, events: Sequence[PodEvent] = (), cordoned: Collection[str] = ()) -> PodView:
        """`cordoned`: names of nodes."""
        meta, status = live["metadata"], mapping(live.get("status"))
        labels, conditions = mapping(meta.get("labels")), by_type(status.get("conditions"))
        scheduled, waiting = conditions.get("PodScheduled", {}), _waiting(status)
        return cls(
            name=meta["name"],
            role=text(labels.get(contract.LABEL_ROLE)),
            revision=text(labels.get(contract.LABEL_REVISION)),
            ready=conditions.get("Ready", {}).get("status") == "True",
            deleting="deletionTimestamp" in meta,
            uid=text(meta.get("uid")),
            address=text(status.get("podIP")),
            created=text(meta.get("creationTimestamp")),
            deletion_cost=text(mapping(meta.get("annotations")).get(contract.ANNOTATION_DELETION_COST)),
            gpus=count(labels.get(contract.LABEL_GPUS)) or 0,
            unschedulable=text(scheduled.get("message")) if scheduled.get("reason") == "Unschedulable" else "",
            cordoned=mapping(live.get("spec")).get("nodeName") in cordoned,
            waiting_reason=text(waiting.get("reason")),
            waiting_message=text(waiting.get("message")),
            ended=_ended(status),
            restarts=sum(number(c.get("restartCount")) for c in container_statuses(status)),
            events=tuple(events),
        )


@dataclass(frozen=True)
class Observed:
    """All that a pass knows. `children` are the labelled objects that the service with its uid owns, and orphans."""

    children: Mapping[tuple[str, str], Manifest] = field(default_factory=dict[tuple[str, str], Manifest])
    """By kind and name."""
    pods: tuple[PodView, ...] = ()
    reported: Mapping[str, int] = field(default_factory=dict[str, int])
    """Size of each pool as the service's status has it, by role: a Deployment can be deleted by hand."""
    drains_known: bool = False
    """Whether pods on nodes that are drained are known to be there."""

    @classmethod
    def of(
        cls,
        live: Iterable[Manifest],
        uid: str,
        events: Mapping[str, Sequence[PodEvent]] | None = None,
        status: Manifest | None = None,
        cordoned: Collection[str] | None = None,
    ) -> Observed:
        """From what the store has of a service: children that the service with `uid` owns or adopts, and all pods of
        its name.

        `events`: of pods, by pod name. `status`: of the service, as it is stored. `cordoned`: names of nodes that
        take no new pods; None: that is not known.
        """
        children: dict[tuple[str, str], Manifest] = {}
        pods: list[PodView] = []
        for manifest in live:
            name = manifest["metadata"]["name"]
            if manifest["kind"] != POD.name:
                if owner_uid(manifest) == uid or is_orphan(manifest):
                    children[manifest["kind"], name] = manifest
            elif not has_ended(manifest):
                pods.append(PodView.of(manifest, (events or {}).get(name, ()), cordoned or ()))
        return cls(children, tuple(pods), _reported(mapping(status)), cordoned is not None)

    def child(self, kind: Kind, name: str) -> Manifest | None:
        return self.children.get((kind.name, name))

    @property
    def workloads(self) -> list[Workload]:
        """Oldest first."""
        found = [Workload.of(m) for (kind, _), m in self.children.items() if kind == DEPLOYMENT.name]
        return sorted(found, key=lambda w: (w.created, w.name))


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


def _reported(status: Mapping[str, Any]) -> Mapping[str, int]:
    """The last decision is about the pool; the status of a pool is about its newest revision."""
    decisions = mappings(mapping(status.get("scaling")).get("decisions"))
    sizes: dict[str, int] = {}
    for role in (role for role in contract.ENGINE_ROLES if role in status):
        decided = (d.get("to") for d in decisions if d.get("role") == role)
        size = number(next(decided, mapping(status[role]).get("desired")), default=-1)
        if size >= 0:
            sizes[role] = size
    return sizes


def owner_uid(live: Manifest) -> str | None:
    """Uid of the controller of an object."""
    owners = mappings(live["metadata"].get("ownerReferences"))
    return next((text(o.get("uid")) for o in owners if o.get("controller")), None)


def is_orphan(live: Manifest) -> bool:
    """We applied it, and nobody owns it: edited by hand, or left by `kubectl delete --cascade=orphan`. The service that
    its label names adopts it, or removes it."""
    return owner_uid(live) is None and any(is_our_apply(entry) for entry in live["metadata"].get("managedFields", []))


def has_ended(pod: Manifest) -> bool:
    """Evicted, or its node is gone: it holds no resources any more, and is replaced already."""
    return mapping(pod.get("status")).get("phase") in ("Failed", "Succeeded")


def container_statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of init containers, too; each has `state` and `lastState`, with mappings in them."""
    listed = [*mappings(status.get("initContainerStatuses")), *mappings(status.get("containerStatuses"))]
    states = ("state", "lastState")
    return [{**c, **{s: {k: mapping(v) for k, v in mapping(c.get(s)).items()} for s in states}} for c in listed]


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first container that waits; one that waits for the containers before it only if there is no other."""
    waiting = [c["state"]["waiting"] for c in container_statuses(status) if c["state"].get("waiting")]
    first = [state for state in waiting if state.get("reason") != "PodInitializing"] or waiting
    return first[0] if first else {}


def _ended(status: Mapping[str, Any]) -> Ended | None:
    for container in container_statuses(status):
        for state in (container["state"], container["lastState"]):
            end = state.get("terminated")
            if end and end.get("exitCode") != 0:
                return Ended(number(end.get("exitCode")), text(end.get("reason")), text(end.get("message")).strip())
    return None


def _labels(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a Deployment: those of its pods where they say what it is, since its own can be edited with nothing said."""
    template = mapping(mapping(mapping(spec.get("template")).get("metadata")).get("labels"))
    identity = (
        *(contract.LABEL_ROLE, contract.LABEL_REVISION, contract.LABEL_FINGERPRINT),
        *(contract.LABEL_GPUS, contract.LABEL_LLMD_ROLE),
    )
    return {**mapping(meta.get("labels")), **{name: template[name] for name in identity if name in template}}
