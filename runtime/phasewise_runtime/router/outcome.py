"""How a request ended: the names that metrics, log and SLO judgement share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
CLIENT_ERROR: Final = "client_error"
CLIENT_CLOSED: Final = "client_closed"
"""The client closed the connection before the end of its answer."""
REJECTED: Final = "rejected"
"""Refused for lack of capacity: a full queue, no engine."""
ENGINE_ERROR: Final = "engine_error"
STREAM_ERROR: Final = "stream_error"
ERROR: Final = "error"
"""A fault of the router itself."""

FAILED: Final = frozenset({REJECTED, ENGINE_ERROR, STREAM_ERROR, ERROR})
"""No complete answer, for a reason that is not the client's."""


@dataclass(slots=True)
class Outcome:
    name: str = ERROR
    code: int = 500
    error: str | None = None

    def answered(self, status: int, error: str | None = None) -> None:
        self.name, self.code, self.error = _name(status), status, error

    def broke(self, reason: str) -> None:
        """The stream ended in an error event."""
        self.name, self.code, self.error = STREAM_ERROR, 200, reason

    def client_closed(self) -> None:
        """Status 499, as in nginx. A complete answer or a stream error that came before stays the outcome."""
        if self.name not in (OK, STREAM_ERROR):
            self.name, self.code = CLIENT_CLOSED, 499


def _name(status: int) -> str:
    if status < 400:
        return OK
    if status in (429, 503):
        return REJECTED
    return CLIENT_ERROR if status < 500 else ENGINE_ERROR
