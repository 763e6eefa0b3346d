"""Values of live objects, read as if they were not there where they cannot be used. Pure.

Labels, annotations and statuses are whatever somebody wrote: a person, another version of the operator, another
kubelet. None of them may end a pass: the pass is what writes the value that should be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

_DIGITS: Final = 9
"""Of a number in a label or an annotation. No pool has a billion replicas, and Python refuses to read 4,301 digits."""


def mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings among the items of a list."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]


def by_type(conditions: object) -> Mapping[str, Mapping[str, Any]]:
    """Conditions of a status by their type."""
    return {text(c.get("type")): c for c in mappings(conditions)}


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def number(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def count(value: object) -> int | None:
    """A number of 0 or more that is written as text; None: it is not one."""
    if isinstance(value, str) and len(value) <= _DIGITS and value.isascii() and value.isdecimal():
        return int(value)
    return None
