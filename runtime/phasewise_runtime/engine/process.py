"""A child process of the launcher, and the reaping that process 1 of a container owes to every process in it.

Only `Reaper` waits for children: the launcher adopts the processes that vLLM leaves behind, so one place
collects all of them and keeps the exit codes.

When the launcher itself is killed, the kernel kills its child, and the container's end takes what that one started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from phasewise_runtime.engine.failure_cause import names_a_cause

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_KEPT_LINES: Final = 400
_KEPT_CAUSES: Final = 20
_prctl = ctypes.CDLL(None, use_errno=True).prctl


WATCHED_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
"""Blocked in the launcher, which takes them one by one in its main loop; its children start with none blocked."""


def _begin_child() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of processes that a child leaves behind, outside a container too, to reap and to stop them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Child:
    """A process in its own group whose output is passed through; its last lines are kept, and of those before them the
    last that may name a cause: vLLM's API server prints a traceback for each request that a dead engine leaves behind.

    Start it from the main thread: the kernel ties its life to the thread that forked it.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._causes: deque[str] = deque(maxlen=_KEPT_CAUSES)
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process = subprocess.Popen(  # noqa: S603 - the command is ours
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_begin_child,  # noqa: PLW1509 - two system calls, on a library loaded before
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._pass_through, name="engine-output", daemon=True)
        self._reader.start()

    def _pass_through(self) -> None:
        output = self._process.stdout
        assert output is not None  # noqa: S101 - opened as a pipe above
        for line in output:
            self._keep(line.decode(errors="replace").rstrip())
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def _keep(self, line: str) -> None:
        if len(self._tail) == _KEPT_LINES and names_a_cause(self._tail[0]):
            self._causes.append(self._tail[0])
        self._tail.append(line)

    @property
    def lines(self) -> list[str]:
        return [*self._causes, *self._tail]

    def signal(self, number: int, *, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def last_lines(self) -> list[str]:
        """Call it after the child has ended: its last output may still be in the pipe.

        The wait is short because a grandchild may hold the pipe open for long.
        """
        self._reader.join(timeout=0.5)
        return self.lines

    def forget(self) -> None:
        """The reaper has collected this child: its handle must not wait for it as well."""
        self._process.returncode = 0


class Reaper:
    """Collects every ended child; call it from the main loop."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}

    def exit_code(self, child: Child) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        self._collect()
        if child.pid not in self._codes:
            return None
        child.forget()
        return self._codes[child.pid]

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._codes[pid] = os.waitstatus_to_exitcode(status)
