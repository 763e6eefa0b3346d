"""The one place that puts identity on children: kind, namespace, labels, owner, hash of the intent. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from phasewise_operator.kinds import Kind, Manifest
from phasewise_operator.render.context import Context
from phasewise_runtime import contract


def common_labels(ctx: Context, role: str) -> dict[str, str]:
    """Kubernetes' recommended labels and ours; pods carry them too."""
    return {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_NAME: "phasewise",
        contract.LABEL_INSTANCE: ctx.name,
        contract.LABEL_COMPONENT: role,
        contract.LABEL_SERVICE: ctx.name,
        contract.LABEL_ROLE: role,
    }


def stamp(
    ctx: Context,
    kind: Kind,
    name: str,
    role: str,
    body: Manifest,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Manifest:
    """A complete child. `body` is everything but apiVersion, kind and metadata."""
    manifest: Manifest = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": name,
            "namespace": ctx.namespace,
            "labels": {**common_labels(ctx, role), **(labels or {})},
            "ownerReferences": [ctx.owner()],
        },
        **body,
    }
    if annotations:
        manifest["metadata"]["annotations"] = annotations
    intent = {contract.ANNOTATION_INTENT: digest(manifest)}
    manifest["metadata"]["annotations"] = {**(annotations or {}), **intent}
    return manifest


def digest(value: Any, length: int = 10) -> str:
    """Hex digest of any JSON value; equal values give equal text in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
