"""The failures of one request, and whether it may be retried. Holds values, does no I/O."""

from __future__ import annotations

from collections import Counter

from phasewise_runtime.contract import DECODE, PREFILL
from phasewise_runtime.router.engine_client import ENGINE_DIED, KV_PATH_FAILED, STALE, EngineAnswer, EngineError
from phasewise_runtime.router.errors import ApiError, of_engine
from phasewise_runtime.router.kv_paths import PROMPT_MISMATCH
from phasewise_runtime.router.policy import KV_FAILED, PREFILL_FAILED

MAX_FAILURES = 3
"""Failures in one role before the request is no longer sent there."""
MAX_ENGINES_DIED = 2
"""One engine may die of something else while it has a request. Of the second the request is taken to be the cause."""
MAX_ATTEMPTS = 12
MAX_CUTS = 2
"""Failed KV paths on which a request waited before it goes on without KV: its decode pod may be why they fail."""
NOT_ASSEMBLABLE = "not_assemblable"


def in_our_words(answer: EngineAnswer) -> EngineAnswer:
    """An engine's error answer in the shape of our own errors."""
    return EngineAnswer(answer.status, answer.headers, of_engine(answer.status, answer.body).json())


class RetryState:
    def __init__(self) -> None:
        self.by_pod: Counter[str] = Counter()
        """Failures that count against a pod, by its uid."""
        self._failures = 0
        self._seen: Counter[str] = Counter()
        self._stale: set[str] = set()
        self._engines_died: list[str] = []
        self._mismatched = False
        self._cuts = 0

    def record(self, failure: EngineError) -> None:
        """Count a failure; for a broken kept connection, also decide whether the pod is to blame."""
        role = failure.pod.role
        self._failures += 1
        self._mismatched = self._mismatched or failure.reason == PROMPT_MISMATCH
        if failure.reason == ENGINE_DIED:
            self._engines_died.append(failure.pod.name)
        idle = failure.reason == STALE and role not in self._stale
        if failure.reason == STALE:
            # Once, an idle connection had timed out. Twice, the pods are down or this request kills them.
            failure.blame = not idle
            self._stale.add(role)
        if failure.reason == KV_PATH_FAILED:
            # No engine failed on it: it waited where another request or a canary saw that KV no longer flows.
            self._cuts += 1
            self.by_pod[failure.pod.uid] += role == DECODE
        elif failure.sent and not idle and failure.reason != NOT_ASSEMBLABLE:
            self._seen[role] += 1

    @property
    def engines_died(self) -> list[str]:
        """Pods whose engine died with this request, where there are as many as a request may have."""
        return self._engines_died if len(self._engines_died) >= MAX_ENGINES_DIED else []

    def decode_only(self) -> str | None:
        """Why the request goes to no other prefill pod.

        After the death of an engine that is so that it is tried on one other engine, not on a pair of them.
        """
        if self._engines_died:
            return ENGINE_DIED
        if self._mismatched:
            return PROMPT_MISMATCH
        if self._cuts >= MAX_CUTS:
            return KV_FAILED
        return PREFILL_FAILED if self._seen[PREFILL] >= MAX_FAILURES else None

    def is_final(self, failure: EngineError) -> bool:
        """No retry follows this failure."""
        refused = failure.answer is not None and 400 <= failure.answer.status < 500 and failure.reason == "error_event"
        exhausted = self._seen[DECODE] >= MAX_FAILURES or self._failures >= MAX_ATTEMPTS
        return refused or failure.reason == "deadline" or exhausted or bool(self.engines_died)

    def final_answer(self, failure: EngineError) -> EngineAnswer:
        """The engine's own error answer; ApiError where it sent none."""
        if self.engines_died:
            message = "Two engines ended while they worked on this request. It is not tried again: it may be the cause."
            raise ApiError(502, message, code=ENGINE_DIED, may_retry=False)
        if failure.answer is not None:
            return in_our_words(failure.answer)
        raise ApiError(
            504 if failure.reason in ("timeout", "silent", "deadline") else 502,
            f"The engines failed on this request {self._failures} times; the last time: {failure.message}.",
            code=failure.reason,
        )
