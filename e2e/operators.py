"""The operator's pods: the leader, its metrics and its writes; to kill it, and to cut it off from an engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from e2e import cluster, kube
from e2e.deploy import NAMESPACE, OPERATOR
from phasewise_runtime import contract

TABLE = "inet phasewise_e2e"


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
    """The operator cannot scrape an engine pod until the block ends; routers, kubelet and engines reach it as before.

    In the pod's own network namespace, packets from the operator's pods are dropped without an answer.
    """
    process = processes_of(kube.get("pod", pod, namespace)["metadata"]["uid"])[0]
    operators = kube.find("pods", f"app.kubernetes.io/name={OPERATOR}", NAMESPACE)
    addresses = ", ".join(p["status"]["podIP"] for p in operators if p["status"].get("podIP"))
    rule = f"ip saddr {{ {addresses} }} tcp dport {contract.LAUNCHER_PORT} drop"
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
