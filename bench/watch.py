"""`python -m bench.watch [PODS] [EVENTS]`: what watching costs the operator, on a small API server of its own.

The operator runs as a process; the pods are objects alone, of some 14.5 KB JSON each, as a GPU cluster's are. Shows the
most memory it held, its CPU seconds until it was quiet, and the CPU of an event of a pod.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.operator.api_server import ApiServer, kubeconfig

from phasewise_operator.kinds import Manifest
from phasewise_runtime import contract

PODS_A_SERVICE = 20
QUIET_SECONDS = 4.0
"""Quiet: less than 2 % of a core for so long."""
FIRST_SECONDS = 12.0
"""Quiet is not looked for earlier."""
BURST = 50
"""Events at a time."""
PORT = "18099"
"""Of the operator's metrics."""
TICKS = os.sysconf("SC_CLK_TCK")


def pod(number: int) -> Manifest:
    """An engine pod as the API server returns it, managedFields and all."""
    service = f"service-{number // PODS_A_SERVICE}"
    env = [{"name": f"VLLM_SETTING_{i}", "value": f"value-{i}-" + "x" * 60} for i in range(30)]
    arguments = [f"--argument-{i}=value" for i in range(40)]
    labels = {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_SERVICE: service,
        contract.LABEL_ROLE: contract.DECODE,
        contract.LABEL_REVISION: "abcdef12",
        contract.LABEL_FINGERPRINT: "12345678",
        contract.LABEL_GPUS: "1",
        "pod-template-hash": "7f9c6d5b8",
    }
    names = {f'k:{{"name":"n{i}"}}': {".": {}, "f:name": {}} for i in range(7)}
    fields = {"f:spec": {f"f:field{i}": names for i in range(20)}}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": f"r{service}", "controller": True}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"engine-{number:05}-decode-7f9c6d5b8-x{number:05}",
            "namespace": "default",
            "uid": f"uid-{number:032}",
            "resourceVersion": "100",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "ownerReferences": [owner],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": f"node-{number % 500}",
            "containers": [{"name": "engine", "image": "r/vllm:1", "env": env, "args": arguments}],
        },
        "status": status(number),
    }


def status(number: int) -> Manifest:
    container = {
        "ready": True,
        "restartCount": 0,
        "image": "r/vllm:1",
        "imageID": "sha256:" + "a" * 64,
        "containerID": "containerd://" + "b" * 64,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        "lastState": {},
    }
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "phase": "Running",
        "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
        "conditions": conditions,
        "containerStatuses": [{"name": name, **container} for name in ("launcher", "engine")],
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


async def quiet(pid: int) -> float:
    """Wait until the process does next to nothing; returns its CPU seconds."""
    while True:
        before = cpu_seconds(pid)
        await asyncio.sleep(QUIET_SECONDS)
        if cpu_seconds(pid) - before < 0.02 * QUIET_SECONDS:
            return before


async def measure(server: ApiServer, pid: int, count: int, events: int) -> None:
    began = time.monotonic()
    while server.count("/pods?watch") < 1 and server.count("/pods?labelSelector") < 1:
        await asyncio.sleep(1)
    await asyncio.sleep(FIRST_SECONDS)
    await quiet(pid)
    took = time.monotonic() - began - QUIET_SECONDS
    print(f"{count} pods: {peak_mib(pid):.0f} MiB at most, {cpu_seconds(pid):.1f} CPU-s until quiet, {took:.0f} s")
    before = cpu_seconds(pid)
    for number in range(events):
        server.put("pods", pod(number % count))
        if number % BURST == 0:
            await asyncio.sleep(0.1)
    await quiet(pid)
    print(f"{events} events of pods: {(cpu_seconds(pid) - before) / events * 1e6:.0f} us CPU each")


async def main() -> None:
    given = [int(text) for text in sys.argv[1:]]
    count, events = (*given, *(10_000, 1_000)[len(given) :])
    server = ApiServer()
    server.put_raw("pods", "default", ((f"p{n}", json.dumps(pod(n)).encode()) for n in range(count)))
    print(f"{len(server.objects['pods', 'default', 'p0'])} bytes a pod")
    async with server.serve() as url:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(kubeconfig(url))
            file.flush()
            env = {**os.environ, "KUBECONFIG": file.name, "PHASEWISE_PORT": PORT}
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "phasewise_operator", env=env)
            try:
                await measure(server, process.pid, count, events)
            finally:
                process.kill()
                await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
