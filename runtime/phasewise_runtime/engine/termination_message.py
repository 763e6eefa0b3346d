"""The pod's termination message: why the launcher ended, and the engine's last errors. Only `write` does I/O.

Kubernetes shows it in the pod's status, so it is short, its first line is the cause, and no secret is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from phasewise_runtime.engine.failure_cause import failure_cause

LIMIT_BYTES: Final = 4096
SHORTEST_SECRET: Final = 4
UNIQUE_SECRET: Final = 8
_SECRETS: Final = re.compile(
    r"hf_\w{8,}|(?i:bearer)\s+\S+|((?i:token|api[-_]?key|password|secret)['\"]?\s*[=:]\s*)[^\s,)]+"
)
_ERROR_LINE: Final = re.compile(
    r"^(?!.*\b(?:DEBUG|INFO|WARNING)\b)"
    r".*(\b(ERROR|CRITICAL|FATAL|Killed)\b|\b\w*(Error|Exception)\b|Segmentation fault|!!!!!!!)"
)
_KEPT_LINES: Final = 20


def compose(reason: str, lines: Sequence[str], secrets: Iterable[str] = ()) -> str:
    """The line that names the cause with the reason, then the last error lines (where there is none, the last lines),
    in at most LIMIT_BYTES."""
    secrets = list(secrets)
    reason = redact(reason, secrets)
    # Before anything is cut to a length: the rest of a secret would not be known as one.
    lines = [redact(line, secrets) for line in lines]
    cause = failure_cause(lines)
    head = f"{cause}; {reason}" if cause and cause not in reason else reason
    errors = [line for line in lines if _ERROR_LINE.search(line)] or lines
    return _fit("\n".join([head, *errors[-_KEPT_LINES:]]), len(head.encode()))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Without the values of secrets, and without what looks like one.

    A value of fewer than SHORTEST_SECRET characters is not looked for: it would be found in any word. One of fewer than
    UNIQUE_SECRET characters counts only where it is not part of a longer word.
    """
    for secret in secrets:
        if len(secret) >= UNIQUE_SECRET:
            text = text.replace(secret, "***")
        elif len(secret) >= SHORTEST_SECRET:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return _SECRETS.sub(lambda found: f"{found.group(1) or ''}***", text)


def _fit(message: str, reason_bytes: int) -> str:
    """Drop the oldest of the engine's lines: the end of a traceback names the error."""
    encoded = message.encode()
    if len(encoded) <= LIMIT_BYTES:
        return message
    head = encoded[: min(reason_bytes, LIMIT_BYTES // 2)]
    tail = encoded[-(LIMIT_BYTES - len(head) - 8) :]
    return f"{head.decode(errors='ignore')}\n…\n{tail.decode(errors='ignore')}"


def write(path: Path, message: str) -> None:
    try:
        path.write_text(message, encoding="utf-8")
    except OSError as error:
        print(f"phasewise: cannot write {path}: {error}", flush=True)
