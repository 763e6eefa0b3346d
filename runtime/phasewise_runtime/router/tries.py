"""What one request has failed on, and when it is not to be tried again. Holds values, does no I/O."""

from __future__ import annotations

from collections import Counter

from phasewise_runtime.contract import DECODE
from phasewise_runtime.router.errors import ENGINE, ApiError
from phasewise_runtime.router.legs import STALE, EngineAnswer, LegError

MAX_FAILURES = 3
"""Engines of a role that may see a request which then fails: a request that kills engines must not kill them all."""
MAX_LEGS = 12
NOT_ASSEMBLABLE = "not_assemblable"


class Tries:
    def __init__(self) -> None:
        self.by_pod: Counter[str] = Counter()
        """Times a pod was to blame, by its uid."""
        self._legs = 0
        self._seen: Counter[str] = Counter()
        self._stale: set[str] = set()

    def note(self, failure: LegError) -> None:
        """Remember a failed leg; of a kept connection that broke, also decide whether the pod is to blame."""
        role = failure.pod.role
        self._legs += 1
        idle = failure.reason == STALE and role not in self._stale
        if failure.reason == STALE:
            # Once is an idle connection's end; twice, and the pods are gone or this request kills them.
            failure.blame = not idle
            self._stale.add(role)
        if failure.sent and not idle and failure.reason != NOT_ASSEMBLABLE:
            self._seen[role] += 1

    def enough(self, role: str) -> bool:
        """No other engine of this role may see the request."""
        return self._seen[role] >= MAX_FAILURES

    def over(self, failure: LegError) -> bool:
        """The request is not to be tried again."""
        refused = failure.answer is not None and 400 <= failure.answer.status < 500 and failure.reason == "error_event"
        return refused or failure.reason == "deadline" or self.enough(DECODE) or self._legs >= MAX_LEGS

    def last_word(self, failure: LegError) -> EngineAnswer:
        """The engine's own error where it sent one, else raises ours."""
        if failure.answer is not None:
            return failure.answer
        raise ApiError(
            504 if failure.reason in ("timeout", "silent", "deadline") else 502,
            f"The engines failed on this request {self._legs} times; the last time: {failure.message}.",
            type=ENGINE,
            code=failure.reason,
        )
