"""What engines that run keep when another version of the operator, or an edit that needs no new pods, would render them
otherwise: their pod template and the default engine image. Pure; called by plan.

Both stand in annotations of the Deployments, where only what we applied ourselves is believed. A template is kept until
the pool has a new revision, or somebody changes the service's annotation `phasewise.dev/refresh-engines`; the image is
kept until the latter. It is the whole service's, so that a new revision of one pool can read the other's KV.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from phasewise_operator.kinds import DEPLOYMENT
from phasewise_operator.live_values import mapping, text
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.managed_fields import owned_annotations
from phasewise_operator.render.context import Context
from phasewise_operator.render.engine import EngineTemplate
from phasewise_runtime import contract

FIELDS_NAMED: Final = 6
"""Of the fields that differ: the message is read by people."""


Notes: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
"""Our own annotations of the engines' Deployments by role and revision, oldest first."""


def engine_notes(observed: Observed) -> Notes:
    engines = [w for w in observed.workloads if w.role in contract.ENGINE_ROLES]
    found = ((w, observed.child(DEPLOYMENT, w.name)) for w in engines)
    return {(w.role, w.revision): owned_annotations(live) for w, live in found if live is not None}


def with_kept_image(ctx: Context, notes: Notes) -> Context:
    """The context with the default engine image that the service runs with; one that names an image does not use it."""
    kept = [found for found in notes.values() if is_kept(ctx, found)]
    images = [image for found in kept if (image := found.get(contract.ANNOTATION_DEFAULT_IMAGE))]
    if not images:
        return ctx
    return dataclasses.replace(ctx, images=dataclasses.replace(ctx.images, engine=images[-1]))


def kept_engines(ctx: Context, notes: Notes, rendered: Sequence[EngineTemplate]) -> tuple[EngineTemplate, ...]:
    """`rendered`, with the template that runs in place of each whose revision runs. All are as rendered where they
    could not pair otherwise: another version may judge by something else what KV blocks mean."""
    live = {engine: found for engine, found in notes.items() if is_kept(ctx, found)}
    kept = tuple(_kept(engine, live.get((engine.role, engine.revision), {})) for engine in rendered)
    return kept if len({engine.fingerprint for engine in kept}) == 1 else tuple(rendered)


def what_is_behind(
    ctx: Context, default_image: str, notes: Notes, rendered: Sequence[EngineTemplate]
) -> tuple[str, ...]:
    """Where the Deployments of the desired revisions are not as they would be rendered now; empty: nowhere.

    `default_image`: the operator's. A template that is to be replaced in this pass counts until that is observed."""
    found: list[str] = []
    if ctx.engine_image != default_image and not ctx.spec.engine.image:
        found.append(f"engine image {ctx.engine_image} (default now: {default_image})")
    for new in rendered:
        old = _kept(new, notes.get((new.role, new.revision), {}))
        if fields := list(_differences(old.template, new.template)):
            more = ["..."] if len(fields) > FIELDS_NAMED else []
            found.append(f"{new.role}: {', '.join([*fields[:FIELDS_NAMED], *more])}")
    return tuple(found)


def is_kept(ctx: Context, notes: Mapping[str, str]) -> bool:
    """False: it was made before somebody asked for new ones."""
    return notes.get(contract.ANNOTATION_REFRESH, "") == ctx.refresh


def _kept(engine: EngineTemplate, notes: Mapping[str, str]) -> EngineTemplate:
    template = _template(notes.get(contract.ANNOTATION_TEMPLATE, ""))
    labels = mapping(mapping(template.get("metadata")).get("labels"))
    if labels.get(contract.LABEL_REVISION) != engine.revision:
        return engine
    fingerprint = text(labels.get(contract.LABEL_FINGERPRINT))
    return dataclasses.replace(engine, template=template, fingerprint=fingerprint)


def _template(written: str) -> dict[str, Any]:
    try:
        found: object = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Paths of the fields that differ, such as spec.initContainers[launcher].image."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
        for key in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list):
        before, after = _by_name(cast("list[Any]", old)), _by_name(cast("list[Any]", new))
        for name in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(name), after.get(name), f"{path}[{name}]")
    elif old != new:
        yield path


def _by_name(items: Sequence[Any]) -> dict[str, Any]:
    return {text(mapping(item).get("name")) or str(number): item for number, item in enumerate(items)}
