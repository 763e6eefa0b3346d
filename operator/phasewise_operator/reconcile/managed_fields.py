"""Which fields of a live object are ours, read from its managedFields. Pure.

The API server keeps, for each field manager, the set of fields it owns (structured-merge-diff's FieldsV1:
https://github.com/kubernetes-sigs/structured-merge-diff). A change by another manager takes the field out of our set,
and a field that is deleted leaves every set. So "drift" is: our set lacks a field of the manifest that we apply. No
value is compared, so quantities and defaults that the API server rewrites are no drift.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from phasewise_operator.kinds import Manifest
from phasewise_operator.live_values import mapping, text
from phasewise_operator.trim import is_our_apply

FieldSet = Mapping[str, Any]


def owned_fields(live: Manifest) -> FieldSet:
    """FieldsV1 of our own server-side apply (of the main resource); empty where we never applied."""
    for entry in live["metadata"].get("managedFields", []):
        if is_our_apply(entry):
            fields = entry.get("fieldsV1", {})
            return _parsed(fields) if isinstance(fields, str) else fields
    return {}


@lru_cache(maxsize=1_000)
def _parsed(stored: str) -> FieldSet:
    """The store keeps the set as JSON text."""
    return json.loads(stored)


def owned_annotations(live: Manifest) -> dict[str, str]:
    """Those that stand as we applied them last: another's value, or one that is gone, is not among them."""
    fields = mapping(mapping(owned_fields(live).get("f:metadata")).get("f:annotations"))
    found = mapping(live["metadata"].get("annotations"))
    return {name: text(value) for name, value in found.items() if f"f:{name}" in fields}


def owns(fields: FieldSet, intent: Manifest) -> bool:
    """Whether every field of an applied manifest is still in the set."""
    body = {k: v for k, v in intent.items() if k not in ("apiVersion", "kind", "metadata")}
    meta = {k: v for k, v in intent["metadata"].items() if k not in ("name", "namespace")}
    return _owns_map(fields, body) and _owns_map(fields.get("f:metadata", {}), meta)


def extract(live: Manifest) -> Manifest:
    """The part of a live object that we own, ready to be applied again with something changed in it."""
    fields = owned_fields(live)
    meta = {"name": live["metadata"]["name"], "namespace": live["metadata"]["namespace"]}
    body = _extract_map(fields, {k: v for k, v in live.items() if k not in ("apiVersion", "kind", "metadata")})
    meta.update(_extract_map(fields.get("f:metadata", {}), live["metadata"]))
    return {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": meta, **body}


def _owns_map(fields: FieldSet, desired: Mapping[str, Any]) -> bool:
    return all(f"f:{key}" in fields and _owns(fields[f"f:{key}"], value) for key, value in desired.items())


def _owns(fields: FieldSet, value: Any) -> bool:
    """An empty set below a field means that the field is owned with everything in it."""
    if not fields:
        return True
    if isinstance(value, Mapping):
        return _owns_map(fields, cast("Mapping[str, Any]", value))
    if isinstance(value, list):
        return all(_owns_item(fields, item) for item in cast("list[Any]", value))
    return True


def _owns_item(fields: FieldSet, item: Any) -> bool:
    found = _item_fields(fields, item)
    return found is not None and _owns(found, item)


def _item_fields(fields: FieldSet, item: Any) -> FieldSet | None:
    """The set below one list item: lists are keyed by some of an item's fields (k:) or by the value itself (v:).

    A key may name a field that the API server defaulted (a port's protocol), so it need only not contradict the item.
    """
    for path, below in fields.items():
        tag, _, key = path.partition(":")
        if tag == "v" and json.loads(key) == item:
            return below
        if tag == "k" and isinstance(item, Mapping):
            entry = cast("Mapping[str, Any]", item)
            if all(entry.get(name, value) == value for name, value in json.loads(key).items()):
                return below
    return None


def _extract_map(fields: FieldSet, live: Mapping[str, Any]) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    for path, below in fields.items():
        name = path.removeprefix("f:")
        if path.startswith("f:") and name in live:
            taken[name] = _extract(below, live[name])
    return taken


def _extract(fields: FieldSet, live: Any) -> Any:
    if not fields:
        return live
    if isinstance(live, str):  # a text has no fields: the store keeps a pod template's spec as JSON
        live = json.loads(live)
    if isinstance(live, Mapping):
        return _extract_map(fields, cast("Mapping[str, Any]", live))
    if isinstance(live, list):
        items = [(item, _item_fields(fields, item)) for item in cast("list[Any]", live)]
        return [_extract(found, item) for item, found in items if found is not None]
    return live
