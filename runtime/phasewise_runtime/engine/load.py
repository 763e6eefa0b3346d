"""What vLLM's /metrics says about work in hand, and when a draining engine may be stopped. Pure; used by `supervisor`.

vLLM counts a request as running until its last token. A prefill engine then still holds the KV blocks that a decode
engine has yet to pull: they show in the share of the KV cache in use, which is zero only when none is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_FIELDS: Final[Mapping[str, str]] = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
}


@dataclass(frozen=True)
class EngineLoad:
    running: float
    waiting: float
    kv_cache_usage: float

    @property
    def idle(self) -> bool:
        return self.running == 0 and self.waiting == 0 and self.kv_cache_usage == 0

    def __str__(self) -> str:
        return f"running {self.running:g}, waiting {self.waiting:g}, KV cache {self.kv_cache_usage:.2%} in use"


def parse_load(page: str) -> EngineLoad | None:
    """The sums over all engines of the page; None where one of the three is missing: unknown is not zero."""
    sums: dict[str, float] = {}
    for line in page.splitlines():
        name, _, rest = line.partition("{")
        field = _FIELDS.get(name)
        if field is None:
            continue
        try:
            sums[field] = sums.get(field, 0) + float(rest.rpartition("}")[2].split()[0])
        except (ValueError, IndexError):
            return None
    return EngineLoad(**sums) if sums.keys() == set(_FIELDS.values()) else None
