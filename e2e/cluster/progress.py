"""What the user sees while the cluster, an image build or the demo works, and the one way in which all of e2e waits."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from e2e.cluster.settings import ClusterError

T = TypeVar("T")
POLL_SECONDS = 0.05
"""Seconds between two probes of what is cheap to ask: a process, a file, a socket."""


class WaitTimeoutError(ClusterError):
    """The deadline has passed; the message says what was waited for."""


def say(text: str, who: str = "cluster") -> None:
    print(f"{who}: {text}", file=sys.stderr, flush=True)


@contextmanager
def phase(what: str, who: str = "cluster") -> Generator[None]:
    """One line on standard error at the end of a phase, with its seconds."""
    started = time.monotonic()
    yield
    say(f"{what} ({time.monotonic() - started:.1f} s)", who)


@contextmanager
def step(text: str) -> Generator[None]:
    """Two lines on standard output: what begins, and how many seconds it took."""
    print(f"==> {text}", flush=True)
    started = time.monotonic()
    yield
    print(f"    {time.monotonic() - started:.1f} s", flush=True)


@contextmanager
def exclusive(lock: Path, other: str) -> Generator[None]:
    """One at a time; the lock is the kernel's, so no interruption leaves it behind."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another {other} to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait_for(what: str, probe: Callable[[], T | None], seconds: float = 60, every: float = 0.5) -> T:
    """The first true value that `probe` returns; WaitTimeoutError with `what` where there is none in time.

    `seconds` bound when the last probe begins; its answer may take longer on a busy machine.
    """
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"waited {seconds:g} s for: {what}")
        time.sleep(every)
    return found
