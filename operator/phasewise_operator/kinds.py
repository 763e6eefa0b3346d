"""The Kubernetes kinds the operator deals in, and the paths under which the API server keeps them.

One table: watch.py watches it, kube.py addresses by it, prune lists by it. A new child kind is added here, in
render/, and in the chart's ClusterRole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from phasewise_runtime import contract

Manifest = dict[str, Any]
"""A Kubernetes object as JSON: raw at the edge, parsed into dataclasses before anybody thinks about it."""


@dataclass(frozen=True)
class Kind:
    name: str
    plural: str
    api_version: str

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


INFERENCE_SERVICE: Final = Kind("InferenceService", "inferenceservices", f"{contract.API_GROUP}/{contract.API_VERSION}")
DEPLOYMENT: Final = Kind("Deployment", "deployments", "apps/v1")
SERVICE: Final = Kind("Service", "services", "v1")
SERVICE_ACCOUNT: Final = Kind("ServiceAccount", "serviceaccounts", "v1")
ROLE: Final = Kind("Role", "roles", "rbac.authorization.k8s.io/v1")
ROLE_BINDING: Final = Kind("RoleBinding", "rolebindings", "rbac.authorization.k8s.io/v1")
DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy/v1")
POD: Final = Kind("Pod", "pods", "v1")
POOL_SCALER: Final = Kind("PoolScaler", "poolscalers", f"{contract.API_GROUP}/{contract.API_VERSION}")
EVENT: Final = Kind("Event", "events", "events.k8s.io/v1")
LEASE: Final = Kind("Lease", "leases", "coordination.k8s.io/v1")

CHILD_KINDS: Final = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, SERVICE, DISRUPTION_BUDGET, POOL_SCALER, DEPLOYMENT)
"""What the operator writes, in the order in which it is written: what a pod needs comes before the pod."""
WATCHED_KINDS: Final = (*CHILD_KINDS, POD)
"""What carries our label and is looked at; services themselves are watched apart, without a label."""

BY_NAME: Final = {k.name: k for k in (*WATCHED_KINDS, INFERENCE_SERVICE)}


def kind_of(manifest: Manifest) -> Kind:
    return BY_NAME[manifest["kind"]]
