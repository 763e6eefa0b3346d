"""The Kubernetes kinds that the operator deals in: where the API server keeps them, and what the operator may do there.

One table: watch.py watches it, kube.py addresses by it, prune lists by it, and `make crds` writes the rules of the
chart's ClusterRole and of its admission policy from it. A new child kind is a row here, in CHILD_KINDS too, and its
builder in render/children.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from phasewise_runtime import contract

Manifest = dict[str, Any]
"""A Kubernetes object as JSON, as the API server sends and takes it."""


CHILD_VERBS: Final = ("get", "list", "watch", "create", "patch", "delete")


@dataclass(frozen=True)
class Kind:
    name: str
    plural: str
    api_version: str
    verbs: tuple[str, ...]
    """What the operator does with objects of this kind, as its rule in the ClusterRole; empty: it has no rule there."""
    status_verbs: tuple[str, ...] = ()
    """The same of the status subresource."""

    def manifest(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **body: Any,
    ) -> Manifest:
        """A bare object. `body`: its fields beside metadata, such as spec."""
        meta: Manifest = {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": meta, **body}

    def identity(self, namespace: str, name: str, uid: str) -> Manifest:
        """The head of an apply that must not make the object: with its uid, it is refused where the object is gone."""
        meta = {"name": name, "namespace": namespace, "uid": uid}
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": meta}

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of a collection (no name) or of one object; namespace None: over all namespaces."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (root + scope, self.plural, name, subresource) if part)


_API: Final = f"{contract.API_GROUP}/{contract.API_VERSION}"
INFERENCE_SERVICE: Final = Kind("InferenceService", "inferenceservices", _API, ("get", "list", "watch"), ("patch",))
POOL_SCALER: Final = Kind("PoolScaler", "poolscalers", _API, CHILD_VERBS, ("patch",))
DEPLOYMENT: Final = Kind("Deployment", "deployments", "apps/v1", CHILD_VERBS)
SERVICE: Final = Kind("Service", "services", "v1", CHILD_VERBS)
SERVICE_ACCOUNT: Final = Kind("ServiceAccount", "serviceaccounts", "v1", CHILD_VERBS)
ROLE_BINDING: Final = Kind("RoleBinding", "rolebindings", "rbac.authorization.k8s.io/v1", CHILD_VERBS)
DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy/v1", CHILD_VERBS)
NETWORK_POLICY: Final = Kind("NetworkPolicy", "networkpolicies", "networking.k8s.io/v1", CHILD_VERBS)
POD: Final = Kind("Pod", "pods", "v1", ("get", "list", "watch"))
"""Also patched to set the deletion cost, where the chart's value rbac.podDeletionCost adds that right."""
EVENT: Final = Kind("Event", "events", "events.k8s.io/v1", ("list", "create"))
NODE: Final = Kind("Node", "nodes", "v1", ("list", "watch"))
"""Of nodes only the names of those that take no new pods are known (nodes.py)."""
LEASE: Final = Kind("Lease", "leases", "coordination.k8s.io/v1", verbs=())
"""Its right is in a Role of the operator's own namespace, for one name."""

CHILD_KINDS: Final = (
    SERVICE_ACCOUNT,
    ROLE_BINDING,
    SERVICE,
    NETWORK_POLICY,
    DISRUPTION_BUDGET,
    POOL_SCALER,
    DEPLOYMENT,
)
"""What the operator writes, and removes where it is not desired any more. The order here says nothing: reconcile/apply
decides which is written first."""
WATCHED_KINDS: Final = (*CHILD_KINDS, POD)
"""Kinds that are watched by our label; InferenceServices are watched apart, without a label."""

BY_NAME: Final = {k.name: k for k in (*WATCHED_KINDS, INFERENCE_SERVICE)}


def kind_of(manifest: Manifest) -> Kind:
    return BY_NAME[manifest["kind"]]


def child_resources() -> list[Manifest]:
    """Rules of an admission policy that match the children by group and resource."""
    return [{"apiGroups": [kind.group], "resources": [kind.plural]} for kind in CHILD_KINDS]


def cluster_rules() -> list[Manifest]:
    """Rules of the operator's ClusterRole: what it does with each kind, and no more."""
    rules: list[Manifest] = []
    for kind in (INFERENCE_SERVICE, *WATCHED_KINDS, EVENT, NODE):
        for resource, verbs in ((kind.plural, kind.verbs), (f"{kind.plural}/status", kind.status_verbs)):
            if verbs:
                rules.append({"apiGroups": [kind.group], "resources": [resource], "verbs": list(verbs)})
    return rules
