"""Errors in the shape OpenAI clients read. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
UNAVAILABLE = "service_unavailable_error"
ENGINE = "engine_error"

ENGINE_FAILED = "The engine failed on this request."
_OF_STATUS = {429: RATE_LIMIT, 503: UNAVAILABLE}


@dataclass(eq=False)
class ApiError(Exception):
    """An error answer: status and the OpenAI error object."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None
    may_retry: bool = True
    """False: OpenAI's clients are asked not to send the request again by themselves, as they do after a 5xx."""

    @property
    def type(self) -> str:
        return _OF_STATUS.get(self.status) or (INVALID_REQUEST if self.status < 500 else ENGINE)

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def json(self) -> bytes:
        return json.dumps(self.body()).encode()

    def event(self) -> bytes:
        """The same error as the last event of a stream: clients raise on it, and no [DONE] follows."""
        return b"data: " + self.json() + b"\n\n"


def of_engine(status: int, raw: bytes) -> ApiError:
    """An engine's error answer, with its message and parameter, in the words of our own errors."""
    try:
        given = json.loads(raw)
    except (ValueError, RecursionError):
        given = None
    answer = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    found = answer.get("error") or answer
    error = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    message, param, code = error.get("message"), error.get("param"), error.get("code")
    if not isinstance(message, str) or not message or "stack trace" in message.lower():
        message = ENGINE_FAILED if status >= 500 else f"The engine refused this request with status {status}."
    # vLLM repeats the status as the code; OpenAI's codes are words.
    named = code if isinstance(code, str) and not code.isdigit() else None
    return ApiError(status, message, code=named, param=param if isinstance(param, str) else None)
