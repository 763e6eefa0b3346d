"""The line of a failed process's output that names the cause: of vLLM, a router, or any other Python program. Pure.

Used by the launcher for its termination message, and by the operator where a container left only the end of its log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_PROCESS: Final = re.compile(r"^\((?P<name>\w+) pid=\d+\)\s?")
"""vLLM puts its process's name before each line, as in "(EngineCore pid=12) "."""
_LOG_HEAD: Final = re.compile(r"^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ")
_LEVEL_BELOW_ERROR: Final = re.compile(r"^(DEBUG|INFO|WARNING)\b")
_EXCEPTION: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w*(?:Error|Exception|Refused|Timeout))(?::|$)")
_ARGPARSE: Final = re.compile(r"^[\w.-]+(?: \w+)?: error: (?P<text>.+)")
"""argparse, last of all that it prints: "api_server.py: error: unrecognized arguments: --foo"."""
_INVALID: Final = re.compile(r"ValidationError: \d+ validation errors? for ")
_POINTS_ELSEWHERE: Final = re.compile(r"EngineDeadError|(?i:root cause)")
"""vLLM in the processes that wait for the one that failed: the cause is in an earlier line."""
_CANCELLED: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*CancelledError\b")
"""What was under way when something else failed."""
_DOWNLOAD: Final = re.compile(r"(?i)repositor|hugging ?face|connect|offline|timed? ?out")
"""vLLM reports a model hub that does not answer as a value that is not valid. That may pass."""
_INPUT: Final = re.compile(r" \[type=\w+, input_value=.*")
"""What pydantic adds: the value can be the whole configuration."""
_LONGEST: Final = 500


def names_a_cause(line: str) -> bool:
    """Whether the line is worth keeping when a process prints more than can be kept."""
    text = _bare(line)
    is_failure = _ARGPARSE.match(text) or (_EXCEPTION.match(text) and not _CANCELLED.match(text))
    return bool(is_failure) and not _POINTS_ELSEWHERE.search(text)


def failure_cause(lines: Sequence[str]) -> str:
    """The last exception, or what argparse refused; empty: neither is there.

    An exception that refers to an earlier one counts only where there is no other. Of vLLM's processes the engine and
    its workers fail first, so theirs goes before one of the API server.
    """
    found = [n for n, line in enumerate(lines) if names_a_cause(line)]
    if not found:
        found = [n for n, line in enumerate(lines) if _EXCEPTION.match(_bare(line))]
    elif any(_POINTS_ELSEWHERE.search(line) for line in lines):
        found = [n for n in found if _process(lines[n]) not in ("", "APIServer")] or found
    return _text(lines, found[-1]) if found else ""


def refused_arguments(lines: Sequence[str]) -> str:
    """The cause, where it is that the engine does not take its arguments: it would fail again. Empty: it is not."""
    cause = failure_cause(lines)
    by_parser = any((found := _ARGPARSE.match(_bare(line))) and found["text"] == cause for line in lines)
    return cause if by_parser or (_INVALID.search(cause) and not _DOWNLOAD.search(cause)) else ""


def _text(lines: Sequence[str], number: int) -> str:
    text = _bare(lines[number])
    if found := _ARGPARSE.match(text):
        return found["text"][:_LONGEST]
    if _INVALID.search(text):
        text = " ".join([text, *_validation_details(lines[number + 1 :])])
    return text.removeprefix("pydantic_core._pydantic_core.")[:_LONGEST]


def _validation_details(lines: Sequence[str]) -> list[str]:
    """What pydantic prints in the lines after an error's first: the field, and what is wrong with it."""
    details: list[str] = []
    for line in lines[:6]:
        text = _bare(line).strip()
        if not text or text.startswith("For further information"):
            break
        details.append(_INPUT.sub("", text))
    return details


def _process(line: str) -> str:
    found = _PROCESS.match(line)
    return found["name"] if found else ""


def _bare(line: str) -> str:
    """Without the name of the process and, of an error, the head of the log line. One that logs no error is empty."""
    text = _PROCESS.sub("", line)
    return "" if _LEVEL_BELOW_ERROR.match(text) else _LOG_HEAD.sub("", text)
