"""`python -m bench.leadership restart|kill|busy|releases [N]`: how leadership holds, on the cluster that is up.

No Phasewise may be installed there. The operator runs as processes of this machine, by the cluster's kubeconfig.
Services have pools of size 0 and a router that no node takes, so that nothing but the operator and the API server is
measured.

- `restart`: N times (5), the only operator ends by TERM, and another process begins when it has ended, as a
  container is restarted: seconds from the signal to a change of that moment being applied by the new process.
  `kill`: the same by KILL.
- `busy`: two operators beside 30 processes that compute without a pause, for N seconds (180): who led, and tracebacks.
- `releases`: operators of two releases, twice cluster-wide and then with a namespace each: who leads, and what is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from e2e import cluster
from e2e.operators import OperatorProcess
from e2e.service import quickstart

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, LEASE, Manifest
from phasewise_operator.kube import Kube

NAMESPACE = "default"
SERVICES = 10
BUSY_PROCESSES = 30
DEADLINE = 60.0
LOST = re.compile(r"no longer leading|stopped acting")


def manifest_of(name: str, cpu: str = "50m") -> Manifest:
    manifest = quickstart(name, NAMESPACE)
    for pool in ("prefill", "decode"):
        manifest["spec"][pool]["replicas"] = {"min": 0, "max": 1}
    manifest["spec"]["router"]["resources"]["requests"]["cpu"] = cpu
    manifest["spec"]["router"]["template"] = {"spec": {"nodeSelector": {"bench": "none"}}}
    return manifest


async def router_cpu(kube: Kube, name: str, namespace: str) -> str:
    live = await kube.get(DEPLOYMENT, namespace, f"{name}-router")
    if live is None:
        return ""
    return live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]


async def until_applied(kube: Kube, name: str, cpu: str, namespace: str = NAMESPACE) -> None:
    started = time.monotonic()
    while await router_cpu(kube, name, namespace) != cpu:
        if time.monotonic() - started > DEADLINE:
            raise SystemExit(f"{name}: its router's Deployment has not been applied in {DEADLINE:g} s")
        await asyncio.sleep(0.02)


async def make_services(kube: Kube) -> list[str]:
    names = [f"leadership-{number}" for number in range(SERVICES)]
    for name in names:
        await kube.apply(manifest_of(name))
    for name in names:
        await until_applied(kube, name, "50m")
    return names


async def remove_services(kube: Kube) -> None:
    for live in (await kube.list(INFERENCE_SERVICE, NAMESPACE)).items:
        if live["metadata"]["name"].startswith("leadership-"):
            await kube.delete(INFERENCE_SERVICE, NAMESPACE, live["metadata"]["name"], live["metadata"]["uid"])


async def restart(kube: Kube, log: Path, number: signal.Signals, rounds: int) -> None:
    operator = OperatorProcess("bench-0", NAMESPACE, log)
    try:
        names = await make_services(kube)
        taken: list[float] = []
        for turn in range(rounds):
            await asyncio.sleep(3)  # not a wait for anything: the operator is idle when the signal comes
            started = time.monotonic()
            ended = operator.end(number)
            await kube.apply(manifest_of(names[0], f"{60 + turn}m"))
            operator = OperatorProcess("bench-0", NAMESPACE, log)
            await until_applied(kube, names[0], f"{60 + turn}m")
            taken.append(time.monotonic() - started)
            print(f"{number.name}: ended after {ended:.2f} s, applied after {taken[-1]:.2f} s", flush=True)
        print(f"{number.name} to the first change applied: {min(taken):.2f} to {max(taken):.2f} s")
    finally:
        operator.end()


@contextmanager
def busy_processes() -> Generator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_PROCESSES)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def busy(kube: Kube, log: Path, seconds: int) -> None:
    operators = [OperatorProcess(f"bench-{n}", NAMESPACE, log.with_suffix(f".{n}")) for n in range(2)]
    try:
        names = await make_services(kube)
        before = await transitions(kube)
        with busy_processes():
            ends, turn = time.monotonic() + seconds, 0
            slowest = 0.0
            while time.monotonic() < ends:
                turn += 1
                started = time.monotonic()
                cpu = f"{100 + turn}m"
                with contextlib.suppress(SystemExit):
                    await kube.apply(manifest_of(names[turn % SERVICES], cpu))
                    await until_applied(kube, names[turn % SERVICES], cpu)
                slowest = max(slowest, time.monotonic() - started)
            print(f"{turn} changes in {seconds} s, the slowest applied after {slowest:.1f} s")
        print(f"leaders beside the first: {await transitions(kube) - before}")
    finally:
        for operator in operators:
            operator.end()
    text = "".join(operator.log.read_text() for operator in operators)
    print(f"terms lost: {len(LOST.findall(text))}, tracebacks: {text.count('Traceback')}, logs: {log.parent}")


async def releases(kube: Kube, log: Path) -> None:
    """Ends with an error where two lead that must not, or where one that should does not."""
    with contextlib.ExitStack() as running:
        await _releases(kube, log, running)


async def _releases(kube: Kube, log: Path, running: contextlib.ExitStack) -> None:
    def begin(name: str, namespace: str, watched: str = "") -> OperatorProcess:
        lease = f"{name}-phasewise-operator"
        begun = OperatorProcess(name, namespace, log.with_suffix(f".{name}"), lease, watched)
        running.callback(begun.end)
        return begun

    first = begin("first", NAMESPACE)
    first.wait_for("leading as first")
    second = begin("second", "kube-system")
    second.wait_for("standing by: .*")
    started = time.monotonic()
    first.end()
    second.wait_for("leading as second")
    print(f"twice cluster-wide: the second led {time.monotonic() - started:.1f} s after the first was stopped")
    third = begin("third", NAMESPACE, NAMESPACE)
    print(f"cluster-wide and by namespace: {third.wait_for('standing by: .*')}")
    second.end()
    third.wait_for("leading as third")
    fourth = begin("fourth", NAMESPACE, "kube-public")
    fourth.wait_for("leading as fourth")
    for name, namespace in (("leadership-0", NAMESPACE), ("leadership-1", "kube-public")):
        manifest = manifest_of(name)
        manifest["metadata"]["namespace"] = namespace
        live = await kube.apply(manifest)
        await until_applied(kube, name, "50m", namespace)
        await kube.delete(INFERENCE_SERVICE, namespace, name, live["metadata"]["uid"])
    print("two in one namespace, with a namespace each: both lead, and each made its service's children")


async def transitions(kube: Kube) -> int:
    lease = await kube.get(LEASE, NAMESPACE, "phasewise-operator")
    return int(lease["spec"].get("leaseTransitions", 0)) if lease else 0


async def main(what: str, count: int | None) -> None:
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig_path())
    log = Path(tempfile.mkdtemp(prefix="leadership-")) / "operator.log"
    kube = await Kube.connect()
    try:
        if what == "busy":
            await busy(kube, log, count or 180)
        elif what == "releases":
            await releases(kube, log)
        else:
            await restart(kube, log, signal.SIGTERM if what == "restart" else signal.SIGKILL, count or 5)
        await remove_services(kube)
    finally:
        await kube.close()
        print(f"log: {log.parent}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("restart", "kill", "busy", "releases"):
        raise SystemExit(__doc__)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None))
