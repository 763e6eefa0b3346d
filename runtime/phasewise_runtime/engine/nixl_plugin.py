"""A vLLM plugin for engines on CPU: NIXL's progress thread sleeps between polls instead of spinning.

vLLM finds it by the entry point that `pack` writes into the launcher's archive, which the launcher puts on the
engine's PYTHONPATH on CPU only: with a GPU the polling is wanted. NIXL's Python API sets the delay to 0 with no
option for it, which burns a core an engine; so the binding's configuration class is replaced by one that keeps ours.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

PROGRESS_DELAY_MICROSECONDS: Final = 5000
_APIS: Final = ("nixl_cu13._api", "nixl_cu12._api", "nixl._api")


def register() -> None:
    # vLLM sets this too, before it imports NIXL; but the import below comes first.
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    for name in _APIS:
        try:
            api = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(api, "nixlBind"):
            slow_down(api.nixlBind)
            return


def slow_down(bindings: Any) -> None:
    """Make every agent of these bindings poll at our delay or a longer one. May be called again."""
    original = bindings.nixlAgentConfig
    if hasattr(original, "phasewise_delay"):
        return
    delay = original.pthrDelay

    class PatientAgentConfig(original):
        phasewise_delay = PROGRESS_DELAY_MICROSECONDS

        @property
        def pthrDelay(self) -> int:  # noqa: N802 - the binding's own name
            return int(delay.__get__(self))

        @pthrDelay.setter
        def pthrDelay(self, value: int) -> None:  # noqa: N802
            delay.__set__(self, max(value, PROGRESS_DELAY_MICROSECONDS))

    bindings.nixlAgentConfig = PatientAgentConfig
