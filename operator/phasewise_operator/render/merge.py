"""A user's partial pod template laid over ours. Pure.

Maps are merged key by key; lists that Kubernetes itself keys are merged by that key; any other list of the user's
replaces ours. Where Kubernetes takes one of several fields, such as the source of a volume, the user's one replaces
ours. Command, arguments, our environment variables and our labels are refused there.
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
_HANDLERS: Final = frozenset({"exec", "grpc", "httpGet", "sleep", "tcpSocket"})
UNIONS: Final[Mapping[str, frozenset[str]]] = {
    "env": frozenset({"value", "valueFrom"}),
    "valueFrom": frozenset({"configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"}),
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe", "postStart", "preStop"), _HANDLERS),
}
"""By the field that holds them: fields of which only one may be set. Of a volume it is any but its name."""
OWNED_ENV: Final = (contract.ENV_ENGINE_CONFIG, contract.ENV_POD_IP)


def merge_template(ours: dict[str, Any], theirs: Mapping[str, Any], where: str, container: str) -> dict[str, Any]:
    """`where` names the field for errors; raises RenderError for what only Phasewise may set."""
    _refuse_owned(theirs, where, container)
    return _merge(ours, theirs, where)


def _merge(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str, field: str = "") -> dict[str, Any]:
    """`field`: that both are the value of, or an entry of."""
    union = (ours.keys() | theirs.keys()) - {"name"} if field == "volumes" else UNIONS.get(field, frozenset[str]())
    chosen = union & theirs.keys()
    merged = {key: value for key, value in ours.items() if not chosen or key in chosen or key not in union}
    for key, value in theirs.items():
        at = f"{where}.{key}"
        mine = merged.get(key)
        if isinstance(mine, Mapping):
            merged[key] = _merge(cast("Mapping[str, Any]", mine), _mapping(value, at), at, key)
        elif isinstance(mine, list) and key in MERGE_KEYS:
            merged[key] = _merge_list(cast("list[Any]", mine), value, key, at)
        else:
            merged[key] = value
    return merged


def _merge_list(ours: list[Any], theirs: Any, field: str, where: str) -> list[Any]:
    key = MERGE_KEYS[field]
    merged = {item[key]: item for item in ours}
    for entry in _entries(theirs, key, where):
        merged[entry[key]] = _merge(merged.get(entry[key], {}), entry, f"{where}[{entry[key]}]", field)
    return list(merged.values())


def _refuse_owned(theirs: Mapping[str, Any], where: str, container: str) -> None:
    meta = _mapping(theirs.get("metadata", {}), f"{where}.metadata")
    labels = _mapping(meta.get("labels", {}), f"{where}.metadata.labels")
    reserved = [k for k in labels if k.startswith(f"{contract.API_GROUP}/") or k == contract.LABEL_MANAGED_BY]
    if reserved:
        raise RenderError(f"{where}.metadata.labels sets {reserved[0]}, which Phasewise sets itself: leave it out")
    spec = _mapping(theirs.get("spec", {}), f"{where}.spec")
    for entry in _entries(spec.get("containers", []), "name", f"{where}.spec.containers"):
        if entry["name"] == container:
            _refuse_owned_container(entry, f"{where}.spec.containers[{container}]")


def _refuse_owned_container(entry: Mapping[str, Any], where: str) -> None:
    for field in ("command", "args"):
        if field in entry:
            raise RenderError(f"{where}.{field} is Phasewise's: write vLLM arguments in spec.engine.args")
    for env in _entries(entry.get("env", []), "name", f"{where}.env"):
        if env["name"] in OWNED_ENV:
            raise RenderError(f"{where}.env sets {env['name']}, which Phasewise sets itself: leave it out")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RenderError(f"{where} must be a mapping of names to values, not {value!r}")
    return cast("Mapping[str, Any]", value)


def _entries(value: Any, key: str, where: str) -> list[Mapping[str, Any]]:
    """A list of mappings that each have a usable `key`, by which they are merged."""
    if not isinstance(value, list):
        raise RenderError(f"{where} must be a list, not {value!r}")
    entries = [_mapping(item, f"{where}[{n}]") for n, item in enumerate(cast("list[Any]", value))]
    for entry in entries:
        if not isinstance(entry.get(key), str | int):
            raise RenderError(f"{where}: each entry needs {key!r}, by which it is merged with what Phasewise renders")
    return entries
