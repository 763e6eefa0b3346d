"""The operator's pods: the leader, its metrics and its writes; to kill it, and to cut it off from an engine. Or without
a pod: an operator as a process of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from e2e import cluster, kube
from e2e.cluster.progress import wait_for
from e2e.deploy import NAMESPACE, OPERATOR
from phasewise_runtime import contract

TABLE = "inet phasewise_e2e"
SAID_SECONDS = 40


class OperatorProcess:
    """An operator as a process of this machine, by the kubeconfig in the environment, which may do everything.

    `name`: as the pod's. `watched`: namespaces, comma-separated; empty: all of them.
    """

    def __init__(self, name: str, namespace: str, log: Path, lease: str = OPERATOR, watched: str = "") -> None:
        self.log = log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        env = {
            contract.ENV_POD_NAME: name,
            contract.ENV_POD_UID: name,
            contract.ENV_NAMESPACE: namespace,
            "PHASEWISE_LEASE_NAME": lease,
            "PHASEWISE_WATCH_NAMESPACES": watched,
            "PHASEWISE_PORT": str(self.port),
        }
        self._out = log.open("ab")
        command = [sys.executable, "-m", "phasewise_operator"]
        self.process = subprocess.Popen(command, env=os.environ | env, stdout=self._out, stderr=self._out)

    def wait_for(self, pattern: str) -> str:
        """The first match in its log."""
        return wait_for(f"{pattern!r} in {self.log}", lambda: self._said(pattern), SAID_SECONDS)

    def _said(self, pattern: str) -> str:
        found = re.search(pattern, self.log.read_text())
        return found.group() if found else ""

    def end(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Seconds until the process has ended."""
        started = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=30)
        self._out.close()
        return time.monotonic() - started


def leader() -> str:
    """Name of the pod that leads; empty where none does."""
    return kube.get("lease", OPERATOR, NAMESPACE)["spec"].get("holderIdentity") or ""


def metrics() -> dict[str, float]:
    """The leader's: the others measure nothing."""
    return kube.samples(leader(), contract.OPERATOR_PORT, NAMESPACE)


def kill(pod: str) -> None:
    """SIGKILL to the container's process: the lease is not given up. The kubelet starts it again."""
    uid = kube.get("pod", pod, NAMESPACE)["metadata"]["uid"]
    killed = next((p for p in processes_of(uid) if b"phasewise_operator" in _command(p)), None)
    assert killed, f"no operator runs in {pod}"
    os.kill(int(killed.name), signal.SIGKILL)


def _command(process: Path) -> bytes:
    """Empty where the process has just ended."""
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes()
    return b""


def processes_of(uid: str) -> list[Path]:
    """Processes of a pod, as the machine numbers them."""
    found: list[Path] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if uid in (process / "cgroup").read_text():
                found.append(process)
    if not found:
        raise AssertionError(f"no process of pod {uid} runs on this machine")
    return found


@contextmanager
def cut_off(pod: str, namespace: str) -> Generator[None]:
    """The operator cannot scrape an engine pod until the block ends; all others reach it."""
    operators = kube.find("pods", f"app.kubernetes.io/name={OPERATOR}", NAMESPACE)
    addresses = ", ".join(p["status"]["podIP"] for p in operators if p["status"].get("podIP"))
    with dropping(pod, namespace, f"ip saddr {{ {addresses} }} tcp dport {contract.LAUNCHER_PORT} drop"):
        yield


@contextmanager
def apart(pod: str, other: str, namespace: str) -> Generator[None]:
    """Two engine pods cannot reach each other until the block ends; all others reach them."""
    address = kube.get("pod", other, namespace)["status"]["podIP"]
    with dropping(pod, namespace, f"ip saddr {address} drop"):
        yield


@contextmanager
def dropping(pod: str, namespace: str, rule: str) -> Generator[None]:
    """Packets that come to a pod are dropped by a rule of nftables, in its own network namespace, without an answer."""
    process = processes_of(kube.get("pod", pod, namespace)["metadata"]["uid"])[0]
    inside = ["nsenter", f"--net={process}/ns/net", "--", "nft", "-f", "-"]
    table = f"table {TABLE} {{\n chain input {{\n type filter hook input priority 0\n {rule}\n }}\n}}\n"
    subprocess.run(inside, input=table, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(inside, input=f"delete table {TABLE}", text=True, check=True)


def writes(since: float, path: str = "") -> list[tuple[float, str]]:
    """Writes of the operator in the API server's audit log: Unix seconds, verb and path."""
    account = f"system:serviceaccount:{NAMESPACE}:"
    found: list[tuple[float, str]] = []
    for line in cluster.selected().audit_log_path().read_text().splitlines():
        event = json.loads(line)
        at = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        if at >= since and event["user"]["username"].startswith(account) and path in event["requestURI"]:
            found.append((at, f"{event['verb']} {event['requestURI']}"))
    return found
