"""Reads the event stream of a decode request as it passes. Pure: bytes in, bytes out; chunks may split events anywhere.

The format is that of server-sent events (WHATWG HTML, section "Parsing an event stream"), ended by `data: [DONE]` as in
the OpenAI API. Lines end in LF or CRLF; a lone CR, which the standard allows and engines do not send, is no end here.

Before the first token each event is parsed. After it an event is parsed only where a cheap byte search says that it
may be the end, the usage or an error; inside JSON text a quote is escaped, so the searches cannot hit generated text.

What is taken out, where the router asked for usage and the client did not: the usage event, and nothing else. vLLM
moves `system_fingerprint` from the last choice event to the usage event when usage is asked for; it is put back.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, cast

Json = dict[str, Any]

MAX_EVENT = 32 * 1024 * 1024
"""Bytes. A longer event is a fault: engines send none."""

_END = re.compile(rb"\n\n|\r\n\r\n")
_DONE = b"[DONE]"
_OUTPUT_KEYS = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal", "audio", "function_call")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a stream failed; `error` is the engine's own error object, if it sent one."""

    reason: str
    message: str
    error: Json | None = None

    @property
    def status(self) -> int:
        """The HTTP status that the engine's error object names; 500 where it names none."""
        code = (self.error or {}).get("code")
        return code if isinstance(code, int) and 400 <= code < 600 else 500


@dataclass(slots=True)
class StreamReader:
    """State of one stream. `feed` returns the bytes that may go to the client."""

    strip_usage: bool = False
    keep: bool = False
    """Keep parsed events, for an answer that is assembled."""
    token_events: int = 0
    """Events with output, so far."""
    finished: bool = False
    """A finish reason was seen."""
    done: bool = False
    """[DONE] was seen: the stream is complete."""
    fault: Fault | None = None
    usage: Json | None = None
    events: list[Json] = field(default_factory=list[Json])
    _buffer: bytes = b""
    _held: bytes | None = None
    _forced_usage: bool = False

    def feed(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        data = self._buffer + chunk if self._buffer else chunk
        start = 0
        for match in _END.finditer(data, max(0, len(self._buffer) - 3)):
            if self.done or self.fault:
                break
            self._event(data[start : match.end()], out)
            start = match.end()
        self._buffer = data[start:]
        if len(self._buffer) > MAX_EVENT:
            self.fault = Fault("malformed", "the engine sent an event of more than 32 MiB")
        return b"".join(out)

    @property
    def answered(self) -> bool:
        """The first token or an end without a token came: the response head may be sent."""
        return self.token_events > 0 or self.finished or self.done

    def _event(self, raw: bytes, out: list[bytes]) -> None:
        if self.token_events and not self.keep and not _notable(raw):
            self.token_events += 1
            out.append(raw)
            return
        data = _data(raw)
        if data is None:
            out.append(raw)
        elif data == _DONE:
            self._release(out)
            self.done = True
            out.append(raw)
        else:
            self._parsed(raw, data, out)

    def _parsed(self, raw: bytes, data: bytes, out: list[bytes]) -> None:
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.fault = Fault("malformed", "the engine sent an event that is not a JSON object")
            return
        event = cast("Json", event)
        if event.get("error"):
            error = event["error"]
            known = cast("Json", error) if isinstance(error, dict) else {"message": str(error)}
            self.fault = Fault("error_event", str(known.get("message") or "the engine failed"), known)
            return
        self._known_good(raw, event, out)

    def _known_good(self, raw: bytes, event: Json, out: list[bytes]) -> None:
        choices = cast("list[Json]", event.get("choices") or [])
        reasons = [c.get("finish_reason") for c in choices]
        if "abort" in reasons:
            self.fault = Fault("abort", "the engine is shutting down and ended the request")
            return
        if self.keep:
            self.events.append(event)
        self.token_events += any(_has_output(c) for c in choices)
        self.finished = self.finished or any(reasons)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage = cast("Json", usage)
            self._forced_usage = self._forced_usage or bool(choices)
        if self.strip_usage and usage and not choices and not self._forced_usage:
            self._stamp(event.get("system_fingerprint"))
        elif self.strip_usage and any(reasons):
            self._release(out)
            self._held = raw
        else:
            self._release(out)
            out.append(raw)

    def _stamp(self, fingerprint: Any) -> None:
        if self._held is None or fingerprint is None or b'"system_fingerprint"' in self._held:
            return
        body = self._held.rstrip()
        if body.endswith(b"}"):
            tail = b',"system_fingerprint":' + json.dumps(fingerprint).encode() + b"}"
            self._held = body[:-1] + tail + self._held[len(body) :]

    def _release(self, out: list[bytes]) -> None:
        if self._held is not None:
            out.append(self._held)
            self._held = None


def _notable(raw: bytes) -> bool:
    if b'"error"' in raw or b'"usage"' in raw or _DONE in raw or not raw.startswith(b"data:"):
        return True
    reasons = raw.count(b'"finish_reason"')
    return reasons > raw.count(b'"finish_reason":null') + raw.count(b'"finish_reason": null')


def _data(raw: bytes) -> bytes | None:
    """The data of an event; None for a comment or another event without data."""
    lines = [line[5:].removeprefix(b" ") for line in raw.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _has_output(choice: Json) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(cast("Json", delta).get(k) for k in _OUTPUT_KEYS)
