"""Which headers cross the router. Pure.

End-to-end headers (Authorization, X-Request-Id, traceparent and all others that client or engine sends) are kept as
they are; hop-by-hop headers (RFC 9110, 7.6.1) and those that describe the bytes of a body we write anew are not.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from phasewise_runtime.contract import HEADER_REQUEST_ID

Headers = list[tuple[str, str]]

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
REQUEST_OWN = frozenset({"host", "content-length", "content-type", "content-encoding", "accept-encoding", "expect"})
"""Set anew towards the engine: the body is written again, uncompressed, and read by the router."""
RESPONSE_OWN = frozenset({"content-length", "content-encoding", "date", "server"})

_SAFE_ID = re.compile(r"[\x21-\x7e]{1,256}\Z")


def to_engine(client: Iterable[tuple[str, str]], request_id: str) -> Headers:
    """Headers for the prefill and the decode request."""
    kept = _end_to_end(client, REQUEST_OWN | {HEADER_REQUEST_ID.lower()})
    return [
        *kept,
        (HEADER_REQUEST_ID, request_id),
        ("Content-Type", "application/json"),
        ("Accept-Encoding", "identity"),
    ]


def to_client(engine: Iterable[tuple[str, str]], request_id: str) -> Headers:
    """Headers of an engine's answer for the client."""
    kept = _end_to_end(engine, RESPONSE_OWN | {HEADER_REQUEST_ID.lower()})
    return [*kept, (HEADER_REQUEST_ID, request_id)]


def request_id_of(value: str | None) -> str:
    """The client's own request id where it is one, else a new one."""
    return value if value and _SAFE_ID.match(value) else uuid.uuid4().hex


def _end_to_end(headers: Iterable[tuple[str, str]], drop: frozenset[str] | set[str]) -> Headers:
    pairs = list(headers)
    named = {t.strip().lower() for k, v in pairs if k.lower() == "connection" for t in v.split(",")}
    out = HOP_BY_HOP | named | drop
    return [(k, v) for k, v in pairs if k.lower() not in out]
