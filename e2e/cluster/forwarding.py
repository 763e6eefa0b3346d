"""Asks the forwarder (forward.py) for forwards, over its unix socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from e2e.cluster.forward import Forward
from e2e.cluster.settings import ClusterError

SECONDS = 10.0


def add(control: Path, forward: Forward) -> int:
    """Open a forward, or find it open; the port on the machine's loopback."""
    return _ask(control, {"add": forward})["forward"]["local"]


def remove(control: Path, name: str) -> None:
    _ask(control, {"remove": name})


def listed(control: Path) -> list[Forward]:
    return _ask(control, {})["forwards"]


def answers(control: Path) -> bool:
    try:
        listed(control)
    except (OSError, ClusterError):
        return False
    return True


def _ask(control: Path, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        try:
            connection.connect(str(control))
        except OSError as error:
            raise ClusterError("the cluster's forwarder does not answer; run: python -m e2e.cluster up") from error
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(connection.makefile().readline() or "{}")
    if "error" in answer:
        raise ClusterError(f"the forward could not be opened: {answer['error']}; is the port in use?")
    return answer
