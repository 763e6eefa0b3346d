"""One engine role's Deployment: an unmodified engine image, with the launcher brought by an init container. Pure.

Its revision is a hash of what the user set (`_revision_inputs`), its KV fingerprint a hash of what is rendered
(render/fingerprint.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from phasewise_operator.api.pool import Pool
from phasewise_operator.kinds import DEPLOYMENT, Manifest
from phasewise_operator.observed import AGGREGATED
from phasewise_operator.render import pod_parts
from phasewise_operator.render.context import (
    Context,
    RenderError,
    canonical,
    digest,
    gpus_per_replica,
    role_labels,
    selector,
)
from phasewise_operator.render.engine_volumes import mounts, volumes
from phasewise_operator.render.fingerprint import KvInputs, check_pair, kv_inputs
from phasewise_operator.render.merge import merge_template
from phasewise_operator.render.template_rules import LAUNCHER, check_template
from phasewise_runtime import contract
from phasewise_runtime.engine.arguments import check_user_arguments
from phasewise_runtime.engine.command import termination_grace_seconds
from phasewise_runtime.engine.config import ConfigError, EngineConfig

CONTAINER: Final = "engine"
STARTUP_SECONDS: Final = 3600
PROBED_SECONDS: Final = STARTUP_SECONDS + 600
"""The launcher, which can say why, gives up before the kubelet does; its time begins after preflight."""
MIN_READY_SECONDS: Final = 10
"""A new pod must have been ready for so long before an old one goes for it: one that fails at once has by then."""
CONFIG_BYTES: Final = 120 * 2**10
"""Of the launcher's configuration. Linux starts no process with a variable of 128 KiB (MAX_ARG_STRLEN), its name
included; the rest is a margin."""
TEMPLATE_BYTES: Final = 192 * 2**10
"""Of a template in an annotation: all annotations of an object may have 256 KiB. One that is longer is not kept."""


@dataclass(frozen=True)
class EngineTemplate:
    """The rendered pods of a role, with their revision and KV fingerprint."""

    role: str
    revision: str
    fingerprint: str
    template: dict[str, Any]
    kv: KvInputs = field(default_factory=dict[str, Any])


def engine_templates(ctx: Context) -> tuple[EngineTemplate, ...]:
    """Those of all roles. Raises RenderError as engine_template does, and where prefill and decode could not pair."""
    engines = tuple(engine_template(ctx, role) for role in ctx.pools)
    if ctx.disaggregated:
        check_pair({e.role: e.kv for e in engines})
    return engines


def engine_template(ctx: Context, role: str) -> EngineTemplate:
    """Raises RenderError where the pool's template asks for what only Phasewise may set."""
    pool = ctx.pools[role]
    config = engine_config(ctx, role, pool)
    ours = {"metadata": {}, "spec": _pod_spec(ctx, role, pool, config)}
    theirs = pool.template or {}
    check_template(ctx, role, theirs, termination_grace_seconds(config))
    template = merge_template(ours, theirs, f"spec.{role}.template", CONTAINER)
    revision = digest(_revision_inputs(ctx, role, pool, config.args))
    kv = kv_inputs(config, next(c for c in template["spec"]["containers"] if c["name"] == CONTAINER))
    fingerprint = digest(kv)
    template["metadata"]["labels"] = {
        **template["metadata"].get("labels", {}),
        **pod_parts.pod_labels(ctx, role),
        contract.LABEL_REVISION: revision,
        contract.LABEL_FINGERPRINT: fingerprint,
        contract.LABEL_GPUS: str(gpus_per_replica(pool)),
        contract.LABEL_LLMD_ROLE: role if ctx.disaggregated else AGGREGATED,
        contract.LABEL_LLMD_MODEL: label_value(ctx.model_name),
    }
    return EngineTemplate(role, revision, fingerprint, template, kv)


def engine_deployment(
    ctx: Context,
    engine: EngineTemplate,
    replicas: int,
    desired: int | None,
    surge: bool = True,
    served: bool = False,
    failed: str = "",
) -> Manifest:
    """The Deployment of one role and revision. Its own rolling update replaces the pods where somebody asked for a
    newer template (reconcile/kept_engines.py), or edited it.

    `desired` is the size of the pool, which a rollout may give this revision in part; None: it has failed. Without
    `surge` that update takes a pod away before it makes one. `served`: it has served, together with the other pool.
    `failed`: when and why its rollout failed."""
    spec = {
        "replicas": replicas,
        "minReadySeconds": MIN_READY_SECONDS,
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": PROBED_SECONDS,
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": int(surge), "maxUnavailable": int(not surge)},
        },
        "selector": {"matchLabels": selector(ctx, engine.role, engine.revision)},
        "template": engine.template,
    }
    kept = (contract.LABEL_REVISION, contract.LABEL_FINGERPRINT, contract.LABEL_GPUS)
    labels = {name: engine.template["metadata"]["labels"][name] for name in kept}
    return DEPLOYMENT.manifest(
        ctx.child_name(engine.role, engine.revision),
        {**role_labels(engine.role), **labels},
        _notes(ctx, engine, desired, served, failed),
        spec=spec,
    )


def _notes(ctx: Context, engine: EngineTemplate, desired: int | None, served: bool, failed: str) -> dict[str, str]:
    """What a later pass reads: to keep the size, the template and the default image, and not to give up what has
    served or try again what has failed."""
    template = canonical(engine.template)
    notes = {
        contract.ANNOTATION_DESIRED: "" if desired is None else str(desired),
        contract.ANNOTATION_FAILED: failed,
        contract.ANNOTATION_TEMPLATE: template if len(template.encode()) <= TEMPLATE_BYTES else "",
        contract.ANNOTATION_DEFAULT_IMAGE: "" if ctx.spec.engine.image else ctx.engine_image,
        contract.ANNOTATION_REFRESH: ctx.refresh,
        contract.ANNOTATION_SERVED: "true" if served else "",
    }
    return {name: value for name, value in notes.items() if value}


def engine_config(ctx: Context, role: str, pool: Pool) -> EngineConfig:
    """Raises RenderError for engine arguments that only the launcher's own rules can judge."""
    peers = [p.parallelism.tensor for other, p in ctx.pools.items() if other != role]
    try:
        args = check_user_arguments(ctx.spec.engine.args)
    except ConfigError as error:
        raise RenderError(f"spec.engine.args: {error}") from None
    config = EngineConfig(
        service=ctx.name,
        role=cast("Any", role),
        model_uri=ctx.spec.model.uri,
        model_name=ctx.model_name,
        disaggregated=ctx.disaggregated,
        device=cast("Any", ctx.spec.engine.device or ("gpu" if pool.accelerator else "cpu")),
        tensor=pool.parallelism.tensor,
        pipeline=pool.parallelism.pipeline,
        peer_tensor=peers[0] if peers else None,
        args=args,
        max_generation_seconds=ctx.spec.max_generation_seconds,
        itl_target_ms=None if ctx.disaggregated else ctx.spec.slo.itl.seconds * 1000,
        startup_seconds=STARTUP_SECONDS,
        secrets_dir=pod_parts.secret_dir("model") if ctx.spec.model.secret_ref else None,
    )
    size = len(config.to_json())
    if size > CONFIG_BYTES:
        raise RenderError(
            f"spec.engine.args: {size:,} bytes together, and at most {CONFIG_BYTES:,} fit in an environment variable: "
            "put long texts in a file, such as of a ConfigMap mounted by the template, and name the file"
        )
    return config


def label_value(text: str) -> str:
    """A model name as a label value: what is not allowed becomes '-', at most 63 characters."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)[:63]
    return kept.strip("-_.")


def _pod_spec(ctx: Context, role: str, pool: Pool, config: EngineConfig) -> dict[str, Any]:
    accelerator = pool.accelerator
    placement = {"nodeSelector": dict(accelerator.node_selector)} if accelerator and accelerator.node_selector else {}
    return {
        "serviceAccountName": ctx.child_name("engine"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": termination_grace_seconds(config),
        "securityContext": pod_parts.POD_SECURITY,
        **pod_parts.pull_secrets(ctx),
        **placement,
        "topologySpreadConstraints": [pod_parts.spread(selector(ctx, role))],
        "initContainers": [_init_container(ctx)],
        "containers": [_container(ctx, pool, config)],
        "volumes": volumes(ctx),
    }


def _init_container(ctx: Context) -> dict[str, Any]:
    return {
        "name": LAUNCHER,
        "image": ctx.images.runtime,
        "imagePullPolicy": ctx.images.pull_policy,
        "command": ["cp", contract.LAUNCHER_SOURCE, f"{contract.LAUNCHER_DIR}/launcher.pyz"],
        "securityContext": pod_parts.CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "volumeMounts": [pod_parts.mount("launcher", contract.LAUNCHER_DIR)],
    }


def _container(ctx: Context, pool: Pool, config: EngineConfig) -> dict[str, Any]:
    scratch = contract.SCRATCH_DIR
    return {
        "name": CONTAINER,
        "image": ctx.engine_image,
        "imagePullPolicy": ctx.pull_policy,
        "command": ["python3", f"{contract.LAUNCHER_DIR}/launcher.pyz"],
        "env": [
            {"name": contract.ENV_ENGINE_CONFIG, "value": _as_written(config.to_json())},
            pod_parts.field_env(contract.ENV_POD_IP, "status.podIP"),
            pod_parts.field_env(contract.ENV_POD_NAME, "metadata.name"),
            {"name": "HOME", "value": scratch},
            {"name": "USER", "value": "phasewise"},
        ],
        "ports": [
            {"name": "http", "containerPort": contract.ENGINE_PORT, "protocol": "TCP"},
            {"name": "launcher", "containerPort": contract.LAUNCHER_PORT, "protocol": "TCP"},
            {"name": "kv-handshake", "containerPort": contract.NIXL_SIDE_CHANNEL_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(pool),
        "securityContext": pod_parts.CONTAINER_SECURITY,
        "startupProbe": pod_parts.http_probe(contract.PATH_STARTED, "launcher", period=2, failures=PROBED_SECONDS // 2),
        "readinessProbe": pod_parts.http_probe(contract.PATH_READY, "launcher", period=2, failures=3),
        "livenessProbe": pod_parts.http_probe(contract.PATH_LIVE, "launcher", period=10, failures=6),
        "terminationMessagePath": contract.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(ctx),
    }


def _as_written(text: str) -> str:
    """As the value of an environment variable: Kubernetes puts variables in place of $(NAME), and $ in place of $$."""
    return text.replace("$", "$$")


def _resources(pool: Pool) -> dict[str, Any]:
    given = pool.resources.to_json() if pool.resources else {}
    gpus = gpus_per_replica(pool)
    if pool.accelerator and gpus:
        name = pool.accelerator.resource
        for part in ("requests", "limits"):
            given[part] = {**given.get(part, {}), name: str(gpus)}
    return {part: {k: str(v) for k, v in values.items()} for part, values in given.items() if values}


def _revision_inputs(ctx: Context, role: str, pool: Pool, args: Mapping[str, Any]) -> dict[str, Any]:
    """What the user set that makes a new revision necessary: an explicit list, defaults and empty values left out.

    A field that is added here with `set_fields` changes the revision only of services that set it. A change of one that
    is not here reaches the pods when they are replaced for another reason (reconcile/kept_engines.py).
    """
    spec = ctx.spec
    return {
        "role": role,
        "disaggregated": ctx.disaggregated,
        "peers": [peer.parallelism.set_fields("tensor") for other, peer in ctx.pools.items() if other != role],
        "image": ctx.engine_image,
        "modelName": ctx.model_name,
        "args": args,
        "resources": _resources(pool),
        "spec": spec.set_fields("image_pull_secrets"),
        "model": spec.model.set_fields("uri", "secret_ref"),
        "pool": pool.set_fields("accelerator", "parallelism", "template"),
    }
