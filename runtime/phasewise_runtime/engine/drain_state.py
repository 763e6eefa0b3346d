"""Drain state of an engine, from vLLM's /metrics: its unfinished work, and when it may be stopped. Pure.

vLLM counts a request as running until its last token. A prefill engine then still holds the KV blocks that a decode
engine has yet to pull: they show in the share of the KV cache in use, which is zero only when none is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

IDLE_SCRAPES: Final = 2
"""Scrapes in a row that must show an idle engine: a request may be between two of vLLM's counters."""

_FIELDS: Final[Mapping[str, str]] = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
}


@dataclass(frozen=True)
class DrainState:
    running: float
    waiting: float
    kv_cache_usage: float

    @property
    def idle(self) -> bool:
        return self.running == 0 and self.waiting == 0 and self.kv_cache_usage == 0

    def __str__(self) -> str:
        return f"running {self.running:g}, waiting {self.waiting:g}, KV cache {self.kv_cache_usage:.2%} in use"


def parse_drain_state(exposition: str) -> DrainState | None:
    """The sums over all engines of the exposition; None where one of the three is missing: unknown is not zero."""
    sums: dict[str, float] = {}
    for line in exposition.splitlines():
        name, _, rest = line.partition("{")
        field = _FIELDS.get(name)
        if field is None:
            continue
        try:
            sums[field] = sums.get(field, 0) + float(rest.rpartition("}")[2].split()[0])
        except (ValueError, IndexError):
            return None
    return DrainState(**sums) if sums.keys() == set(_FIELDS.values()) else None


class IdleProbe:
    """Call it at each scrape: True once IDLE_SCRAPES in a row showed an idle engine, else None. Unknown is not idle."""

    def __init__(self, scrape: Callable[[], DrainState | None]) -> None:
        self._scrape = scrape
        self._idle_scrapes = 0

    def __call__(self) -> bool | None:
        state = self._scrape()
        self._idle_scrapes = self._idle_scrapes + 1 if state is not None and state.idle else 0
        return True if self._idle_scrapes >= IDLE_SCRAPES else None
