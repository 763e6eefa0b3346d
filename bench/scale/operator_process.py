"""The operator as a process beside the control plane: started, ended, and measured from /proc."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.deploy import NAMESPACE

TICKS = os.sysconf("SC_CLK_TCK")
QUIET_SHARE = 0.15
"""Of a core: less is the upkeep of a thousand idle services."""
QUIET_SECONDS = 4.0
_number = itertools.count()


@dataclass(frozen=True)
class OperatorProcess:
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    """On the monotonic clock."""

    @classmethod
    def start(cls, environment: Mapping[str, str], kubeconfig: Path, logs: Path) -> OperatorProcess:
        """Every process has an identity of its own, as a pod's replacement has."""
        name = f"operator-{os.getpid()}-{next(_number)}"
        own = {"POD_NAME": name, "POD_NAMESPACE": NAMESPACE, "KUBECONFIG": str(kubeconfig)}
        log = logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "phasewise_operator"],
                env={**os.environ, **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return cls(process, log, time.monotonic())

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """And wait until it has ended."""
        self.process.send_signal(number)
        self.process.wait(60)

    @property
    def cpu(self) -> float:
        """CPU seconds, of user and system, since it started."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self, field: str) -> float:
        """MiB. `field` of /proc/PID/status: VmRSS (now) or VmHWM (at most so far)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0

    async def quiet(self, seconds: float) -> float:
        """Seconds from its start to when it began to use little CPU; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while True:
                since, used = time.monotonic(), self.cpu
                await asyncio.sleep(QUIET_SECONDS)
                if self.cpu - used < QUIET_SHARE * (time.monotonic() - since):
                    return since - self.started

    async def leads(self, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not self.terms:
                await asyncio.sleep(0.1)

    @property
    def terms(self) -> int:
        return self.log.read_text().count("leading as ")

    @property
    def tracebacks(self) -> int:
        return self.log.read_text().count("Traceback (most recent call last)")
