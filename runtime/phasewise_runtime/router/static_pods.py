"""Pods listed in a JSON file instead of the API server: for development and tests. Read again when it changes."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, cast

from phasewise_runtime.router.pod_registry import PodRegistry
from phasewise_runtime.router.pods import Pod, pod_from_file

log = logging.getLogger(__name__)

INTERVAL = 0.25
EXAMPLE = '[{"role": "decode", "address": "127.0.0.1", "port": 8000}]'


def read_pods(path: Path) -> list[Pod]:
    """Read the file; ValueError says which entry is wrong, and how."""
    value = json.loads(path.read_text())
    if not isinstance(value, list):
        raise ValueError(f"the file is not a list: write {EXAMPLE}")  # noqa: TRY004 - one kind of error for a bad file
    pods: list[Pod] = []
    for i, entry in enumerate(cast("list[Any]", value)):
        try:
            pods.append(pod_from_file(entry))
        except (ValueError, AttributeError) as e:
            raise ValueError(f"entry {i}: {e}") from e
    return pods


def _version(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


async def watch_file(path: Path, pod_registry: PodRegistry) -> None:
    seen: object = None
    while True:
        try:
            now = _version(path)
            if now != seen:
                seen = now
                pod_registry.replace_all(read_pods(path))
        except (OSError, ValueError) as e:
            log.warning("static pods cannot be read; the last ones stay", extra={"file": str(path), "detail": str(e)})
        await asyncio.sleep(INTERVAL)
