"""The router: its Deployment, the Service clients use, and the right to watch the service's pods. Pure."""

from __future__ import annotations

from typing import Any, Final

from phasewise_operator.kinds import DEPLOYMENT, ROLE, ROLE_BINDING, SERVICE, SERVICE_ACCOUNT, Manifest
from phasewise_operator.render import pods
from phasewise_operator.render.context import Context, selector
from phasewise_operator.render.merge import merge_template
from phasewise_operator.render.stamp import common_labels, stamp
from phasewise_runtime import contract

CONTAINER: Final = "router"
SERVICE_PORT: Final = 80
SETTLE_SECONDS: Final = 15
"""Time for endpoints to be withdrawn everywhere, and for the process to end."""
DEFAULT_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def router_children(ctx: Context) -> list[Manifest]:
    return [
        stamp(ctx, SERVICE_ACCOUNT, _name(ctx), contract.ROUTER, {"automountServiceAccountToken": False}),
        _role(ctx),
        _role_binding(ctx),
        _service(ctx),
        _deployment(ctx),
    ]


def service_url(ctx: Context) -> str:
    """Where clients inside the cluster find the API."""
    return f"http://{ctx.name}.{ctx.namespace}.svc"


def _name(ctx: Context) -> str:
    return ctx.child_name(contract.ROUTER)


def _role(ctx: Context) -> Manifest:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    return stamp(ctx, ROLE, _name(ctx), contract.ROUTER, {"rules": rules})


def _role_binding(ctx: Context) -> Manifest:
    body = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _name(ctx)},
        "subjects": [{"kind": "ServiceAccount", "name": _name(ctx), "namespace": ctx.namespace}],
    }
    return stamp(ctx, ROLE_BINDING, _name(ctx), contract.ROUTER, body)


def _service(ctx: Context) -> Manifest:
    spec = {
        "type": "ClusterIP",
        "selector": selector(ctx, contract.ROUTER),
        "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    return stamp(ctx, SERVICE, ctx.name, contract.ROUTER, {"spec": spec})


def _deployment(ctx: Context) -> Manifest:
    router = ctx.spec.router
    # New pods get new tokens; the kubelet would keep the void ones for most of an hour.
    renewed = {"annotations": {contract.ANNOTATION_ACCOUNT: ctx.router_account}} if ctx.router_account else {}
    ours = {"metadata": renewed, "spec": _pod_spec(ctx)}
    template = merge_template(ours, router.template or {}, "spec.router.template", CONTAINER)
    labels = template["metadata"].get("labels", {})
    template["metadata"]["labels"] = {**labels, **common_labels(ctx, contract.ROUTER)}
    spec = {
        "replicas": router.replicas,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": selector(ctx, contract.ROUTER)},
        "template": template,
    }
    return stamp(ctx, DEPLOYMENT, _name(ctx), contract.ROUTER, {"spec": spec})


def _pod_spec(ctx: Context) -> dict[str, Any]:
    volumes = [pods.empty_dir("tmp")]
    keys = ctx.spec.router.api_keys
    if keys:
        volumes.append(pods.secret_volume("api-keys", keys.secret_ref))
    return {
        "serviceAccountName": _name(ctx),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": ctx.spec.max_generation_seconds + SETTLE_SECONDS,
        "securityContext": pods.POD_SECURITY,
        **pods.pull_secrets(ctx),
        "topologySpreadConstraints": [pods.spread(selector(ctx, contract.ROUTER))],
        "containers": [_container(ctx)],
        "volumes": volumes,
    }


def _container(ctx: Context) -> dict[str, Any]:
    resources = ctx.spec.router.resources
    mounts = [pods.mount("tmp", "/tmp")]  # noqa: S108 - the pod's own emptyDir
    if ctx.spec.router.api_keys:
        mounts.append(pods.mount("api-keys", pods.secret_dir("api-keys"), read_only=True))
    return {
        "name": CONTAINER,
        "image": ctx.images.runtime,
        "imagePullPolicy": ctx.images.pull_policy,
        "command": ["python3", "-m", "phasewise_runtime.router"],
        "args": _arguments(ctx),
        "env": [
            pods.field_env(contract.ENV_NAMESPACE, "metadata.namespace"),
            pods.field_env(contract.ENV_POD_NAME, "metadata.name"),
        ],
        "ports": [
            {"name": "http", "containerPort": contract.ROUTER_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": contract.ROUTER_ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": resources.to_json() if resources else DEFAULT_RESOURCES,
        "securityContext": pods.CONTAINER_SECURITY,
        "startupProbe": pods.http_probe(contract.PATH_LIVE, "admin", period=1, failures=60),
        "readinessProbe": pods.http_probe(contract.PATH_READY, "admin", period=2, failures=2),
        "livenessProbe": pods.http_probe(contract.PATH_LIVE, "admin", period=10, failures=6),
        "volumeMounts": mounts,
    }


def _arguments(ctx: Context) -> list[str]:
    arguments = [
        f"--service={ctx.name}",
        f"--model-name={ctx.model_name}",
        "--disaggregated" if ctx.disaggregated else "--no-disaggregated",
        f"--max-generation-seconds={ctx.spec.max_generation_seconds}",
        f"--hold-seconds={ctx.spec.hold_seconds:g}",
        f"--ttft-target-seconds={ctx.spec.slo.ttft.seconds:g}",
        f"--itl-target-seconds={ctx.spec.slo.itl.seconds:g}",
    ]
    if ctx.spec.router.api_keys:
        arguments.append(f"--api-keys-dir={pods.secret_dir('api-keys')}")
    return arguments
