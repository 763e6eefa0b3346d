"""The failures of one request, and whether it may be retried. Holds values, does no I/O."""

from __future__ import annotations

from collections import Counter

from phasewise_runtime.contract import DECODE
from phasewise_runtime.router.engine_client import STALE, EngineAnswer, EngineError
from phasewise_runtime.router.errors import ENGINE, ApiError

MAX_FAILURES = 3
"""Failures in one role before the request is no longer sent there: one that kills engines must not kill them all."""
MAX_ATTEMPTS = 12
NOT_ASSEMBLABLE = "not_assemblable"


class RetryState:
    def __init__(self) -> None:
        self.by_pod: Counter[str] = Counter()
        """Failures that count against a pod, by its uid."""
        self._failures = 0
        self._seen: Counter[str] = Counter()
        self._stale: set[str] = set()

    def record(self, failure: EngineError) -> None:
        """Count a failure; for a broken kept connection, also decide whether the pod is to blame."""
        role = failure.pod.role
        self._failures += 1
        idle = failure.reason == STALE and role not in self._stale
        if failure.reason == STALE:
            # Once, an idle connection had timed out. Twice, the pods are down or this request kills them.
            failure.blame = not idle
            self._stale.add(role)
        if failure.sent and not idle and failure.reason != NOT_ASSEMBLABLE:
            self._seen[role] += 1

    def exhausted(self, role: str) -> bool:
        """The request must not be sent to another engine of this role."""
        return self._seen[role] >= MAX_FAILURES

    def is_final(self, failure: EngineError) -> bool:
        """No retry follows this failure."""
        refused = failure.answer is not None and 400 <= failure.answer.status < 500 and failure.reason == "error_event"
        return refused or failure.reason == "deadline" or self.exhausted(DECODE) or self._failures >= MAX_ATTEMPTS

    def final_answer(self, failure: EngineError) -> EngineAnswer:
        """The engine's own error answer; ApiError where it sent none."""
        if failure.answer is not None:
            return failure.answer
        raise ApiError(
            504 if failure.reason in ("timeout", "silent", "deadline") else 502,
            f"The engines failed on this request {self._failures} times; the last time: {failure.message}.",
            type=ENGINE,
            code=failure.reason,
        )
