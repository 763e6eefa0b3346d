"""Volumes of engine pods, and where their container has them. Pure."""

from __future__ import annotations

from typing import Any

from phasewise_operator.render import pod_parts
from phasewise_operator.render.context import Context, RenderError
from phasewise_runtime import contract
from phasewise_runtime.model_uri import ModelLocation, ModelUriError, model_location


def volumes(ctx: Context) -> list[dict[str, Any]]:
    found = [
        pod_parts.empty_dir("launcher"),
        pod_parts.empty_dir("scratch"),
        pod_parts.empty_dir("tmp"),
        pod_parts.empty_dir("shm", medium="Memory"),
    ]
    location = _model_location(ctx)
    if location.claim:
        claim = {"claimName": location.claim, "readOnly": True}
        found.append({"name": "models", "persistentVolumeClaim": claim})
    elif location.mount:
        found.append(pod_parts.empty_dir("models"))
    if ctx.spec.model.secret_ref:
        found.append(pod_parts.secret_volume("model-secret", ctx.spec.model.secret_ref))
    return found


def mounts(ctx: Context) -> list[dict[str, Any]]:
    found = [
        pod_parts.mount("launcher", contract.LAUNCHER_DIR, read_only=True),
        pod_parts.mount("scratch", contract.SCRATCH_DIR),
        pod_parts.mount("tmp", "/tmp"),  # noqa: S108 - the engine's libraries expect it; it is the pod's own emptyDir
        pod_parts.mount("shm", "/dev/shm"),  # noqa: S108
    ]
    location = _model_location(ctx)
    if location.mount:
        found.append(pod_parts.mount("models", location.mount, read_only=location.claim is not None))
    if ctx.spec.model.secret_ref:
        found.append(pod_parts.mount("model-secret", pod_parts.secret_dir("model"), read_only=True))
    return found


def _model_location(ctx: Context) -> ModelLocation:
    try:
        return model_location(ctx.spec.model.uri)
    except ModelUriError as error:
        raise RenderError(f"spec.model.uri: {error}") from None
