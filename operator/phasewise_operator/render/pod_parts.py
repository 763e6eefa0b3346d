"""Pieces that engine and router pods share: labels, security context, probes, volumes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from phasewise_operator.api.base import LocalRef
from phasewise_operator.render.context import Context
from phasewise_runtime import contract

USER_ID: Final = 65532
"""The image's own non-root user (`nonroot` in distroless images)."""

POD_SECURITY: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod_labels(ctx: Context, role: str) -> dict[str, str]:
    """Labels of every pod of a role. A key here changes the pod templates: an upgrade of the operator restarts all
    routers for it, and engines get it when they are replaced. A label that pods do not need goes into
    children.child_labels."""
    return {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_NAME: "phasewise",
        contract.LABEL_INSTANCE: ctx.name,
        contract.LABEL_COMPONENT: role,
        contract.LABEL_SERVICE: ctx.name,
        contract.LABEL_ROLE: role,
    }


def http_probe(path: str, port: str, period: int, failures: int, timeout: int = 5) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def field_env(name: str, path: str) -> dict[str, Any]:
    """An environment variable from the pod's own fields."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def spread(selector: Mapping[str, str]) -> dict[str, Any]:
    """Over nodes, where there are several: never a reason not to run."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selector)},
    }


def empty_dir(name: str, **options: str) -> dict[str, Any]:
    return {"name": name, "emptyDir": dict(options)}


def mount(name: str, path: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def secret_volume(name: str, ref: LocalRef) -> dict[str, Any]:
    """Files that only the pod's group can read."""
    return {"name": name, "secret": {"secretName": ref.name, "defaultMode": 0o440}}


def secret_dir(name: str) -> str:
    return f"{contract.SECRETS_DIR}/{name}"


def pull_secrets(ctx: Context) -> dict[str, Any]:
    names = [{"name": ref.name} for ref in ctx.spec.image_pull_secrets]
    return {"imagePullSecrets": names} if names else {}
