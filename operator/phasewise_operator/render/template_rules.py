"""What a user's pod template may not set, asked before it is merged (merge.py). Pure.

What Phasewise's own pods rely on is refused always: the programs that it brings, and the time to drain. All that may
give rights is refused unless the chart's `podTemplates` is `Full` (api/pod_templates.py has that list).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from phasewise_operator.api import pod_templates
from phasewise_operator.render.context import Context, RenderError
from phasewise_runtime import contract

LAUNCHER: Final = "launcher"
"""Name of the init container that brings the launcher, and of the volume that holds it."""
PROGRAM: Final = ("image", "command", "args")


def check_template(ctx: Context, role: str, template: Mapping[str, Any], grace_seconds: int) -> None:
    """`grace_seconds`: the terminationGracePeriodSeconds that pods of the role need. Raises RenderError."""
    if ctx.permissions.safe_templates and (refusal := pod_templates.refusal(role, template)):
        raise RenderError(refusal)
    where, spec = f"spec.{role}.template.spec", _mapping(template.get("spec"))
    for field in _reserved_fields(role, spec):
        raise RenderError(f"{where}.{field} is Phasewise's: leave it out; the chart's runtimeImage names the image")
    given = spec.get("terminationGracePeriodSeconds", grace_seconds)
    if not isinstance(given, int) or given < grace_seconds:
        advice = f"leave it out, or write {grace_seconds} or more; it follows from spec.maxGeneration"
        raise RenderError(
            f"{where}.terminationGracePeriodSeconds: requests that run need more time than {given}: {advice}"
        )


def _reserved_fields(role: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """Fields through which another program would take the place of the launcher or the router."""
    if role == contract.ROUTER:
        yield from _named_fields(spec, "containers", contract.ROUTER, ("image",))
        return
    yield from _named_fields(spec, "initContainers", LAUNCHER, PROGRAM)
    yield from (f"volumes[{LAUNCHER}]" for volume in _items(spec, "volumes") if volume.get("name") == LAUNCHER)
    for container in _items(spec, "containers"):
        for mount in _items(container, "volumeMounts"):
            if _hides_launcher(mount.get("mountPath")):
                yield f"containers[{container.get('name')}].volumeMounts[{mount['mountPath']}]"


def _hides_launcher(path: Any) -> bool:
    """However it is written: the kubelet takes a relative path from the root."""
    if not isinstance(path, str):
        return False
    absolute = posixpath.normpath("/" + path.lstrip("/"))
    return posixpath.commonpath([absolute, contract.LAUNCHER_DIR]) == contract.LAUNCHER_DIR


def _named_fields(spec: Mapping[str, Any], key: str, name: str, fields: tuple[str, ...]) -> Iterator[str]:
    for item in _items(spec, key):
        if item.get("name") == name:
            yield from (f"{key}[{name}].{field}" for field in fields if field in item)


def _items(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Entries of a list; a value of another type is refused where it is merged."""
    value = parent.get(key)
    return [_mapping(item) for item in cast("list[Any]", value)] if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
