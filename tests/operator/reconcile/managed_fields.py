"""managedFields as the API server would write them, for objects that tests make up."""

from __future__ import annotations

from typing import Any


def fields_of(value: Any) -> Any:
    """FieldsV1 of an applied value; a list counts as owned whole."""
    return {f"f:{k}": fields_of(v) for k, v in value.items()} if isinstance(value, dict) else {}
