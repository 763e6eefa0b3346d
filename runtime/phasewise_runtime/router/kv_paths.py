"""The KV transfer of one pair of pods: unproved, proved or failed, and when a canary may try it next. Pure.

    unproved --canary or request succeeds--> proved --hard evidence, or LOAD_FAILURES failed loads in a row--> failed
    unproved --canary fails--> failed --canary succeeds, after a back-off--> proved

A canary that says nothing of the path (an engine that is overloaded, or that cannot be reached) leaves the state as it
is. An engine that refuses the canary can never be proved by one: its paths are open, and its requests prove them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

UNPROVED: Final = "unproved"
PROVED: Final = "proved"
FAILED: Final = "failed"

# --- why a path failed -------------------------------------------------------------------------------------
KV_PARAMS_MISSING: Final = "kv_params_missing"
"""Prefill answered without KV parameters."""
PROMPT_MISMATCH: Final = "prompt_mismatch"
"""Prefill and decode counted different prompt tokens."""
KV_NOT_LOADED: Final = "kv_not_loaded"
"""Decode said that it could not load the KV."""
TRANSFER_TIMEOUT: Final = "transfer_timeout"
"""Decode answers, but not with KV of this prefill pod."""
PREFILL_TIMEOUT: Final = "prefill_timeout"
"""Prefill does not answer, and its engine is not merely slow: nothing happens in it."""
PREFILL_FAILED: Final = "prefill_failed"
"""Prefill answered with an error, or broke the connection."""
RECOMPUTED: Final = "recomputed"
"""Decode answered, and its connector moved no KV: it computed the prompt itself."""
WRONG_ANSWER: Final = "wrong_answer"
"""Decode answers differently with the KV than without."""

OF_PREFILL: Final = frozenset({KV_PARAMS_MISSING, PREFILL_TIMEOUT, PREFILL_FAILED})
"""Evidence that holds for all paths of the prefill pod."""
LOAD_FAILURES: Final = 2
"""Failed loads in a row that fail a path; one may be the fault of a request."""
WITHOUT_RESULT: Final = 2
"""Canaries in a row that say nothing, after which requests try the path: engines that are too busy for a canary would
otherwise get all prompts in decode, and be busier still."""
FIRST_BACKOFF = 1.0
MAX_BACKOFF = 30.0
FORGIVE_AFTER = 60.0
"""Seconds without a failure after which the back-off starts from the first again. Less, and a fault that no canary
shows would make a path fail and be proved again every second."""


@dataclass(frozen=True, slots=True)
class Path:
    """Times are those of the caller's monotonic clock, in seconds."""

    state: Literal["unproved", "proved", "failed"] = UNPROVED
    reason: str = ""
    """Why it failed; empty in other states."""
    proved_at: float | None = None
    """The last KV transfer that succeeded."""
    refused: bool = False
    """The engines refuse the canary."""
    load_failures: int = 0
    """In a row."""
    tries: int = 0
    """Failures and canaries without a result, in a row: they make the back-off."""
    tried_at: float = 0.0
    """The last of these."""
    suspected: bool = False
    """A canary should look at it as soon as the back-off is over."""

    @property
    def open(self) -> bool:
        """Requests may take it."""
        return self.state == PROVED or (self.state == UNPROVED and (self.refused or self.tries >= WITHOUT_RESULT))

    @property
    def next_try(self) -> float:
        return self.tried_at + backoff(self.tries) if self.tries else 0.0


NEW: Final = Path()


def on_canary(path: Path, now: float) -> Path:
    """A canary proved it."""
    return Path(PROVED, proved_at=now, tries=_remembered(path, now), tried_at=path.tried_at)


def on_success(path: Path, now: float) -> Path:
    """A request had its first token. A failed path stays failed: that request was sent before it failed."""
    if not path.open:
        return path
    return Path(PROVED, proved_at=now, refused=path.refused, tries=_remembered(path, now), tried_at=path.tried_at)


def on_failure(path: Path, now: float, reason: str) -> Path:
    """A request gave hard evidence. More of it, from requests sent before the path failed, changes nothing."""
    return path if path.state == FAILED else on_failed_canary(path, now, reason)


def on_failed_canary(path: Path, now: float, reason: str) -> Path:
    tries = _remembered(path, now) + 1
    return Path(FAILED, reason, path.proved_at, refused=path.refused, tries=tries, tried_at=now)


def on_load_failure(path: Path, now: float) -> Path:
    """A request's KV could not be loaded, which may be the request's own fault once."""
    if path.state == FAILED:
        return path
    if path.load_failures + 1 >= LOAD_FAILURES:
        return on_failure(path, now, KV_NOT_LOADED)
    return replace(path, load_failures=path.load_failures + 1, suspected=True)


def on_suspicion(path: Path) -> Path:
    return path if path.state == FAILED else replace(path, suspected=True)


def on_no_result(path: Path, now: float) -> Path:
    """A canary ended without saying anything of the path."""
    return replace(path, tries=path.tries + 1, tried_at=now, suspected=False)


def on_refusal(path: Path, now: float) -> Path:
    """Decode refuses the canary itself (status 4xx). Only requests can show whether a failed path works again."""
    state = PROVED if path.state == PROVED else UNPROVED
    return replace(on_no_result(path, now), state=state, reason="", refused=True)


def backoff(tries: int) -> float:
    return min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** max(0, min(tries, 10) - 1))


def _remembered(path: Path, now: float) -> int:
    return 0 if now - path.tried_at > FORGIVE_AFTER else path.tries
