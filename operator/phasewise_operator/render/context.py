"""Context, which every builder gets: a parsed service and the operator's images; values that builders share. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phasewise_operator.api.pool import Pool
from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_operator.kinds import INFERENCE_SERVICE, Manifest
from phasewise_operator.live_values import mapping, text
from phasewise_runtime import contract

MAX_NAME = 63
"""Characters in the name of a Service, and in a label's value."""


class RenderError(ValueError):
    """The spec cannot be rendered; the message says what to write instead."""


@dataclass(frozen=True)
class Images:
    runtime: str
    engine: str
    pull_policy: str


@dataclass(frozen=True)
class PodPeer:
    """Pods that a NetworkPolicy lets in: those of a namespace with these labels; all of it where there are none."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Permissions:
    """What the chart permits."""

    safe_templates: bool = True
    """Pod templates of users may set only what api/pod_templates.py lists."""
    router_role: str = "phasewise-router"
    """The ClusterRole by which routers read the pods of their namespace."""
    metrics_readers: tuple[PodPeer, ...] | None = None
    """Who may read the metrics of engines and routers: the operator's pods, and those of a monitoring system. None: the
    service gets no NetworkPolicy."""


@dataclass(frozen=True)
class Context:
    namespace: str
    name: str
    uid: str
    spec: InferenceServiceSpec
    images: Images
    generation: int = 0
    """metadata.generation of the spec."""
    router_account: str | None = None
    """Uid of the router's ServiceAccount if it was created after the routers: the tokens that they hold are void."""
    permissions: Permissions = Permissions()
    refresh: str = ""
    """Digest of what the service's annotation phasewise.dev/refresh-engines says; empty: nothing."""

    @classmethod
    def of(cls, live: Manifest, images: Images, permissions: Permissions = Permissions()) -> Context:
        """The context of a live InferenceService; raises pydantic's ValidationError for a spec that is not valid."""
        meta = live["metadata"]
        spec = InferenceServiceSpec.model_validate(live.get("spec", {}))
        service = (meta["namespace"], meta["name"], meta["uid"])
        asked = text(mapping(meta.get("annotations")).get(contract.ANNOTATION_REFRESH))
        refresh = digest(asked) if asked else ""
        return cls(*service, spec, images, meta["generation"], permissions=permissions, refresh=refresh)

    @property
    def model_name(self) -> str:
        """The name under which clients ask for the model."""
        return self.spec.model.name or self.name

    @property
    def disaggregated(self) -> bool:
        return self.spec.prefill is not None

    @property
    def engine_image(self) -> str:
        return self.spec.engine.image or self.images.engine

    @property
    def pull_policy(self) -> str:
        return self.spec.engine.image_pull_policy or self.images.pull_policy

    @property
    def pools(self) -> dict[str, Pool]:
        """Pool by role; no prefill where decode does both phases."""
        pools = {contract.PREFILL: self.spec.prefill, contract.DECODE: self.spec.decode}
        return {role: pool for role, pool in pools.items() if pool is not None}

    def child_name(self, *parts: str) -> str:
        """Name of a child: the service's name and the parts, a DNS label, which every kind of child may have.

        A name that is too long keeps its parts; the service's name is cut and gets a hash, so that the children of two
        services whose names begin alike do not meet. Kubernetes cuts the names of pods by itself: 58 characters of
        Deployment and ReplicaSet, and 5 random ones. So pods are found by label, never by name.
        """
        suffix = "".join(f"-{part}" for part in parts)
        if len(self.name) + len(suffix) <= MAX_NAME:
            return self.name + suffix
        suffix = f"-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}{suffix}"
        return self.name[: MAX_NAME - len(suffix)].rstrip("-") + suffix

    def owner(self) -> Manifest:
        """The owner reference by which Kubernetes' garbage collector removes children after the service."""
        return {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.name,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }


def role_labels(role: str) -> dict[str, str]:
    """Labels of a child that belongs to one role, beside those that every child has. Pods: see pod_parts.pod_labels."""
    return {contract.LABEL_COMPONENT: role, contract.LABEL_ROLE: role}


def selector(ctx: Context, role: str, revision: str | None = None) -> dict[str, str]:
    """Labels by which pods are selected. A selector is immutable, so a key can never be added here."""
    labels = {contract.LABEL_SERVICE: ctx.name, contract.LABEL_ROLE: role}
    return labels if revision is None else {**labels, contract.LABEL_REVISION: revision}


def gpus_per_replica(pool: Pool) -> int:
    """GPUs that one replica of a pool takes; 0 on CPU."""
    return pool.parallelism.accelerators if pool.accelerator else 0


def digest(value: Any, length: int = 10) -> str:
    """Hex digest of any JSON value; equal values give equal text in every process."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
