"""What the user sees while the cluster, or an image build, works: one line a phase, with its seconds."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.settings import ClusterError

POLL_SECONDS = 0.05


def say(text: str, who: str = "cluster") -> None:
    print(f"{who}: {text}", file=sys.stderr, flush=True)


@contextmanager
def phase(what: str, who: str = "cluster") -> Generator[None]:
    started = time.monotonic()
    yield
    say(f"{what} ({time.monotonic() - started:.1f} s)", who)


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


def wait_for(condition: Callable[[], object], seconds: float, otherwise: str) -> None:
    """Wait until the condition holds; after the given seconds, fail with a message that says what to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{otherwise} (waited {seconds:.0f} s)")
        time.sleep(POLL_SECONDS)
