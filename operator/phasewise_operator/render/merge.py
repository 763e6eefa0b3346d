"""A user's partial pod template laid over ours. Pure.

Maps are merged key by key; lists that Kubernetes itself keys are merged by that key; any other list of the user's
stands for the whole. What makes the pod an engine of this service cannot be changed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from phasewise_operator.render.context import RenderError
from phasewise_runtime import contract

MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
}
OWNED_ENV: Final = (contract.ENV_ENGINE_CONFIG, contract.ENV_POD_IP)


def merge_template(ours: dict[str, Any], theirs: Mapping[str, Any], where: str, container: str) -> dict[str, Any]:
    """`where` names the field for errors; raises RenderError for what only Phasewise may set."""
    _refuse_owned(theirs, where, container)
    return _merge(ours, theirs, where)


def _merge(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> dict[str, Any]:
    merged = dict(ours)
    for key, value in theirs.items():
        at = f"{where}.{key}"
        mine = merged.get(key)
        if isinstance(value, Mapping) and isinstance(mine, Mapping):
            merged[key] = _merge(cast("Mapping[str, Any]", mine), cast("Mapping[str, Any]", value), at)
        elif isinstance(value, list) and isinstance(mine, list) and key in MERGE_KEYS:
            merged[key] = _merge_list(cast("list[Any]", mine), cast("list[Any]", value), MERGE_KEYS[key], at)
        else:
            merged[key] = value
    return merged


def _merge_list(ours: list[Any], theirs: list[Any], key: str, where: str) -> list[Any]:
    merged = {item[key]: item for item in ours}
    for item in theirs:
        if not isinstance(item, Mapping) or key not in item:
            raise RenderError(f"{where}: each entry needs {key!r}, by which it is merged with what Phasewise renders")
        entry = cast("Mapping[str, Any]", item)
        merged[entry[key]] = _merge(merged.get(entry[key], {}), entry, f"{where}[{entry[key]}]")
    return list(merged.values())


def _refuse_owned(theirs: Mapping[str, Any], where: str, container: str) -> None:
    labels = theirs.get("metadata", {}).get("labels", {})
    reserved = [k for k in labels if k.startswith(f"{contract.API_GROUP}/") or k == contract.LABEL_MANAGED_BY]
    if reserved:
        raise RenderError(f"{where}.metadata.labels sets {reserved[0]}, which Phasewise sets itself: leave it out")
    for entry in theirs.get("spec", {}).get("containers", []):
        if not isinstance(entry, Mapping) or cast("Mapping[str, Any]", entry).get("name") != container:
            continue
        at = f"{where}.spec.containers[{container}]"
        for field in ("command", "args"):
            if field in entry:
                raise RenderError(f"{at}.{field} is Phasewise's: write vLLM arguments in spec.engine.args")
        for env in cast("Mapping[str, Any]", entry).get("env", []):
            if env.get("name") in OWNED_ENV:
                raise RenderError(f"{at}.env sets {env['name']}, which Phasewise sets itself: leave it out")
