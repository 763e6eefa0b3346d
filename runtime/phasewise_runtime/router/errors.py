"""Errors in the shape OpenAI clients read. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
UNAVAILABLE = "service_unavailable_error"
ENGINE = "engine_error"


@dataclass(eq=False)
class ApiError(Exception):
    """An error answer: status and the OpenAI error object."""

    status: int
    message: str
    type: str = INVALID_REQUEST
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def json(self) -> bytes:
        return json.dumps(self.body()).encode()

    def event(self) -> bytes:
        """The same error as the last event of a stream: clients raise on it, and no [DONE] follows."""
        return b"data: " + self.json() + b"\n\n"
