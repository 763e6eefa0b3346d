"""What the store keeps of an object: what somebody reads, and no more. Pure.

Of 10,000 pods with 14 KB of JSON each, whole copies would fill a gigabyte. Equal labels of pods are one object, so
nothing in the store may be changed in place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, POOL_SCALER, Kind, Manifest
from phasewise_operator.live_values import mapping
from phasewise_runtime import contract

_META: Final = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "labels",
    "annotations", "ownerReferences",
})  # fmt: skip
_NOT_OF_PODS: Final = frozenset({"ownerReferences", "annotations", "generation"})
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_POD_STATUS: Final = ("phase", "reason", "message", "podIP", "conditions", "initContainerStatuses", "containerStatuses")
_CONTAINER_STATUS: Final = ("name", "ready", "restartCount", "state", "lastState")
_PASSED: Final = frozenset({"Initialized", "ContainersReady", "PodReadyToStartContainers"})
"""Conditions of a pod that say nothing any more once they are True."""


def trim(kind: Kind, manifest: Manifest) -> Manifest:
    """A copy, with `kind` and `apiVersion`. managedFields: only our own apply, its fields as JSON text.

    Drift is found in managedFields, so of most children the metadata is enough.
    """
    live: dict[str, Any] = manifest["metadata"]
    meta = {key: value for key, value in live.items() if key in _META}
    head: Manifest = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta}
    if kind is POD:
        return {**head, **_trim_pod(manifest, meta)}
    if _LAST_APPLIED in (meta.get("annotations") or {}):
        meta["annotations"] = {k: v for k, v in meta["annotations"].items() if k != _LAST_APPLIED}
    if kind is not INFERENCE_SERVICE:
        meta["managedFields"] = [_as_text(m) for m in live.get("managedFields") or () if is_our_apply(m)]
    if kind in (INFERENCE_SERVICE, POOL_SCALER):
        return {**manifest, **head}
    return {**head, **_trim_deployment(manifest)} if kind is DEPLOYMENT else head


def _trim_deployment(manifest: Manifest) -> Manifest:
    """Its pods' spec as JSON text: it is read only to apply an old revision again (managed_fields.extract)."""
    spec, status = dict(mapping(manifest.get("spec"))), dict(mapping(manifest.get("status")))
    template = dict(mapping(spec.get("template")))
    if isinstance(template.get("spec"), dict):
        spec["template"] = {**template, "spec": json.dumps(template["spec"], separators=(",", ":"))}
    return {"spec": spec, "status": status}


def is_our_apply(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of managedFields is that of our own server-side apply, of the main resource."""
    ours = entry.get("manager") == contract.FIELD_MANAGER and entry.get("operation") == "Apply"
    return ours and not entry.get("subresource")


def _as_text(entry: Mapping[str, Any]) -> Manifest:
    """A tree of a hundred small dicts takes ten times the memory of its text, which many services have in common."""
    fields = entry.get("fieldsV1", {})
    text = fields if isinstance(fields, str) else json.dumps(fields, separators=(",", ":"))
    return {"manager": entry["manager"], "operation": entry["operation"], "fieldsV1": sys.intern(text)}


def _trim_pod(manifest: Manifest, meta: Manifest) -> Manifest:
    """Cuts `meta`, too. What PodView and reconcile/observe read."""
    annotations: dict[str, str] = meta.get("annotations") or {}
    labels: dict[str, str] = meta.get("labels") or {}
    cost = annotations.get(contract.ANNOTATION_DELETION_COST)
    for key in _NOT_OF_PODS:
        meta.pop(key, None)
    if cost is not None:
        meta["annotations"] = {contract.ANNOTATION_DELETION_COST: cost}
    meta["labels"] = _shared(tuple(labels.items()))
    live: dict[str, Any] = manifest.get("status") or {}
    status = {key: live[key] for key in _POD_STATUS if live.get(key)}
    if "conditions" in status:
        status["conditions"] = [_condition(c) for c in status["conditions"] if _says_something(c)]
    for key in ("initContainerStatuses", "containerStatuses"):
        if key in status:
            status[key] = [_container(c) for c in status[key]]
    spec: dict[str, Any] = manifest.get("spec") or {}
    return {"spec": {"nodeName": spec.get("nodeName")}, "status": status}


@lru_cache(maxsize=20_000)
def _shared(labels: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Pods of one revision have the same labels."""
    return dict(labels)


def _says_something(condition: Mapping[str, Any]) -> bool:
    return not (condition.get("type") in _PASSED and condition.get("status") == "True")


def _container(status: Mapping[str, Any]) -> Manifest:
    return {key: value for key in _CONTAINER_STATUS if (value := status.get(key)) not in (None, {})}


def _condition(condition: Mapping[str, Any]) -> Manifest:
    return {key: value for key, value in condition.items() if value is not None}
