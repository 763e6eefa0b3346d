"""The model's name: which names clients may ask for, and which one an engine gets. Pure.

Engines of two names run side by side while a rollout changes `spec.model.name`. Both names ask for the same service: a
request goes to any of its pods, under the name by which that pod's engine knows the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def served_names(newest: str, of_pods: Iterable[str]) -> tuple[str, ...]:
    """`newest`, the name in the spec, and after it the names that pods have.

    A pod that is not ready, or that ends, counts too: a name is served until the last pod of it is gone.
    """
    return newest, *sorted({*of_pods} - {newest})


def renamed(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The body with the engine's own name for the model; unchanged where it names none, or `model` is not known."""
    if not model or body.get("model") is None:
        return dict(body)
    return {**body, "model": model}
