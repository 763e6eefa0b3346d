"""The router: its Deployment, the Service clients use, and the right to watch the service's pods. Pure."""

from __future__ import annotations

from typing import Any, Final

from phasewise_operator.kinds import DEPLOYMENT, ROLE_BINDING, SERVICE, SERVICE_ACCOUNT, Manifest
from phasewise_operator.render import pod_parts
from phasewise_operator.render.context import Context, digest, role_labels, selector
from phasewise_operator.render.merge import merge_template
from phasewise_operator.render.template_rules import check_template
from phasewise_runtime import contract

CONTAINER: Final = "router"
LABELS: Final = role_labels(contract.ROUTER)
SERVICE_PORT: Final = 80
SETTLE_SECONDS: Final = 15
"""Time for the removal of the endpoint to reach every node, and for the process to end."""
DEFAULT_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def router_children(ctx: Context) -> list[Manifest]:
    return [
        SERVICE_ACCOUNT.manifest(_name(ctx), LABELS, automountServiceAccountToken=False),
        _role_binding(ctx),
        _service(ctx),
        _deployment(ctx),
    ]


def service_url(ctx: Context) -> str:
    """Where clients inside the cluster find the API."""
    return f"http://{ctx.name}.{ctx.namespace}.svc"


def _name(ctx: Context) -> str:
    return ctx.child_name(contract.ROUTER)


def _role_binding(ctx: Context) -> Manifest:
    """The chart's ClusterRole, in this namespace only. A binding's role can never be changed: a ClusterRole of another
    name, as of another release of the chart, gets a binding of another name."""
    role = ctx.permissions.router_role
    return ROLE_BINDING.manifest(
        ctx.child_name(contract.ROUTER, digest(role, 8)),
        LABELS,
        roleRef={"apiGroup": ROLE_BINDING.group, "kind": "ClusterRole", "name": role},
        subjects=[{"kind": SERVICE_ACCOUNT.name, "name": _name(ctx), "namespace": ctx.namespace}],
    )


def _service(ctx: Context) -> Manifest:
    spec = {
        "type": "ClusterIP",
        "selector": selector(ctx, contract.ROUTER),
        "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    return SERVICE.manifest(ctx.name, LABELS, spec=spec)


def _deployment(ctx: Context) -> Manifest:
    router = ctx.spec.router
    # New pods get new tokens; the kubelet would keep the void ones for most of an hour.
    renewed = {"annotations": {contract.ANNOTATION_ACCOUNT: ctx.router_account}} if ctx.router_account else {}
    ours = {"metadata": renewed, "spec": _pod_spec(ctx)}
    theirs = router.template or {}
    check_template(ctx, contract.ROUTER, theirs, _grace_seconds(ctx))
    template = merge_template(ours, theirs, "spec.router.template", CONTAINER)
    labels = template["metadata"].get("labels", {})
    template["metadata"]["labels"] = {**labels, **pod_parts.pod_labels(ctx, contract.ROUTER)}
    spec = {
        "replicas": router.replicas,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": selector(ctx, contract.ROUTER)},
        "template": template,
    }
    return DEPLOYMENT.manifest(_name(ctx), LABELS, spec=spec)


def _grace_seconds(ctx: Context) -> int:
    return ctx.spec.max_generation_seconds + SETTLE_SECONDS


def _pod_spec(ctx: Context) -> dict[str, Any]:
    volumes = [pod_parts.empty_dir("tmp")]
    keys = ctx.spec.router.api_keys
    if keys:
        volumes.append(pod_parts.secret_volume("api-keys", keys.secret_ref))
    return {
        "serviceAccountName": _name(ctx),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace_seconds(ctx),
        "securityContext": pod_parts.POD_SECURITY,
        **pod_parts.pull_secrets(ctx),
        "topologySpreadConstraints": [pod_parts.spread(selector(ctx, contract.ROUTER))],
        "containers": [_container(ctx)],
        "volumes": volumes,
    }


def _container(ctx: Context) -> dict[str, Any]:
    resources = ctx.spec.router.resources
    mounts = [pod_parts.mount("tmp", "/tmp")]  # noqa: S108 - the pod's own emptyDir
    if ctx.spec.router.api_keys:
        mounts.append(pod_parts.mount("api-keys", pod_parts.secret_dir("api-keys"), read_only=True))
    return {
        "name": CONTAINER,
        "image": ctx.images.runtime,
        "imagePullPolicy": ctx.images.pull_policy,
        "command": ["python3", "-m", "phasewise_runtime.router"],
        "args": _arguments(ctx),
        "env": [
            pod_parts.field_env(contract.ENV_NAMESPACE, "metadata.namespace"),
            pod_parts.field_env(contract.ENV_POD_NAME, "metadata.name"),
        ],
        "ports": [
            {"name": "http", "containerPort": contract.ROUTER_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": contract.ROUTER_ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": resources.to_json() if resources else DEFAULT_RESOURCES,
        "securityContext": pod_parts.CONTAINER_SECURITY,
        "startupProbe": pod_parts.http_probe(contract.PATH_LIVE, "admin", period=1, failures=60),
        "readinessProbe": pod_parts.http_probe(contract.PATH_READY, "admin", period=2, failures=2),
        "livenessProbe": pod_parts.http_probe(contract.PATH_LIVE, "admin", period=10, failures=6),
        "volumeMounts": mounts,
    }


def _arguments(ctx: Context) -> list[str]:
    arguments = [
        f"--service={ctx.name}",
        f"--model-name={ctx.model_name}",
        f"--max-generation-seconds={ctx.spec.max_generation_seconds}",
        f"--hold-seconds={ctx.spec.hold_seconds:g}",
        f"--ttft-target-seconds={ctx.spec.slo.ttft.seconds:g}",
        f"--itl-target-seconds={ctx.spec.slo.itl.seconds:g}",
    ]
    if ctx.spec.router.api_keys:
        arguments.append(f"--api-keys-dir={pod_parts.secret_dir('api-keys')}")
    return arguments
