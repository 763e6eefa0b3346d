"""The scenarios: each prints its figures beside their limits. The limits are the project's promises.

A scenario leaves its services behind for the next, which creates what is missing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.scale import audit
from bench.scale.api import NAMESPACE, Api
from bench.scale.control_plane import NODES, ScaleCluster
from bench.scale.operator_process import OperatorProcess

from phasewise_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.render.context import Context, Images
from phasewise_runtime import contract

FEW, MANY, PODS = 100, 1000, 10_000
READY_SECONDS = 1800
STEADY_SECONDS = 60
IDLE_MIB = 350e6 / 2**20
BUSY_PROCESSES, BUSY_SECONDS = 30, 180
POD_BYTES = 14_500
"""Of an engine's pod as JSON, on a real cluster."""


@dataclass
class Bench:
    cluster: ScaleCluster
    api: Api
    failed: list[str] = field(default_factory=list[str])

    def figure(self, what: str, measured: float, limit: float | None = None, unit: str = "") -> None:
        """One line; a figure above its limit fails the run."""
        passed = "" if limit is None else f" (at most {limit:g}) {'PASS' if measured <= limit else 'FAIL'}"
        print(f"  {what}: {measured:.4g}{unit}{passed}", flush=True)
        if limit is not None and measured > limit:
            self.failed.append(what)

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[OperatorProcess]:
        """One that leads; it is killed at the end, if it still runs."""
        running = self.start_operator()
        try:
            await running.leads()
            yield running
        finally:
            if running.process.poll() is None:
                running.end()

    def start_operator(self) -> OperatorProcess:
        kubeconfig = self.cluster.settings.state / "operator.kubeconfig"
        return OperatorProcess.start(self.cluster.operator_environment(), kubeconfig, self.cluster.settings.logs)

    def calls(self) -> Callable[[], audit.Calls]:
        """Counts the operator's calls from now on until it is asked."""
        log = self.cluster.audit_log_path()
        begin = log.stat().st_size

        def so_far() -> audit.Calls:
            with log.open() as file:
                file.seek(begin)
                return audit.count(line for line in file if line.endswith("\n"))

        return so_far

    async def have_services(self, count: int) -> None:
        """So many that are Ready, made by an operator that ends afterwards."""
        known = len(await self.api.names(INFERENCE_SERVICE))
        if known > count:
            raise SystemExit(f"{known} services are there, more than {count}: run `python -m bench.scale down` first")
        if known == count:
            return
        print(f"  making {count - known} services", flush=True)
        async with self.operator() as running:
            await self.api.create_all(INFERENCE_SERVICE, (service(n) for n in range(known, count)))
            await self.api.all_ready(count, READY_SECONDS)
            await running.quiet(READY_SECONDS)


def service(number: int) -> dict[str, Any]:
    """As small as can be, with pools that may grow: the scaling loop decides their sizes."""
    spec = {
        "model": {"uri": "file:///opt/models/tiny", "name": "tiny"},
        "slo": {"ttft": "1s", "itl": "100ms"},
        **{pool: {"replicas": {"min": 1, "max": 2}} for pool in ("prefill", "decode")},
        "router": {"replicas": 1},
    }
    meta = {"name": service_name(number), "namespace": NAMESPACE}
    return {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.name, "metadata": meta, "spec": spec}


def service_name(number: int) -> str:
    return f"scale-{number:04}"


async def create(bench: Bench) -> None:
    """100 services from nothing to Ready."""
    async with bench.operator() as running:
        await running.quiet(60)
        calls, cpu, began = bench.calls(), running.cpu, time.monotonic()
        await bench.api.create_all(INFERENCE_SERVICE, (service(n) for n in range(FEW)))
        await bench.api.all_ready(FEW, 300)
        bench.figure("seconds until all are Ready", time.monotonic() - began)
        bench.figure("operator CPU seconds until all are Ready", running.cpu - cpu, 12)
        await running.quiet(120)
        bench.figure("operator CPU seconds until it is quiet", running.cpu - cpu)
        found = calls()
        bench.figure("API calls a service", found.total / FEW)
        bench.figure("writes a service, Events apart", found.writes / FEW, found.children / FEW + 4)
        bench.figure("children a service", found.children / FEW)
        bench.figure("status writes a service", found.statuses / FEW)
        bench.figure("memory at most", running.memory("VmHWM"), unit=" MiB")
        bench.figure("tracebacks", running.tracebacks, 0)
        print("\n".join(found.lines()))


async def idle(bench: Bench, count: int = MANY) -> None:
    """1,000 services that nobody uses: memory and CPU of an operator that began beside them."""
    await bench.have_services(count)
    async with bench.operator() as running:
        await running.quiet(600)
        cpu, began, calls = running.cpu, time.monotonic(), bench.calls()
        await asyncio.sleep(STEADY_SECONDS)
        bench.figure("memory", running.memory("VmRSS"), IDLE_MIB, " MiB")
        bench.figure("memory at most", running.memory("VmHWM"), IDLE_MIB, " MiB")
        bench.figure("CPU of a core", 100 * (running.cpu - cpu) / (time.monotonic() - began), unit=" %")
        bench.figure("writes in a minute", calls().writes, 0)


async def restart(bench: Bench, count: int = MANY) -> None:
    """An operator begins beside services; one of them was changed while there was none."""
    await bench.have_services(count)
    name = service_name(count // 2)
    await bench.api.change_routers(name, 2)
    calls, running = bench.calls(), bench.start_operator()
    try:
        await bench.api.routers_are(name, 2, 300)
        bench.figure("seconds until the change is handled", time.monotonic() - running.started, 20)
        bench.figure("seconds until it is steady", await running.quiet(600), STEADY_SECONDS)
        bench.figure("operator CPU seconds until then", running.cpu)
        await asyncio.sleep(max(0.0, running.started + STEADY_SECONDS - time.monotonic()))
        found = calls()
        bench.figure("writes, those of the changed service apart", found.writes_apart_from(name), 0)
        bench.figure("terms", running.terms, 1)
        bench.figure("memory at most", running.memory("VmHWM"), unit=" MiB")
        bench.figure("tracebacks", running.tracebacks, 0)
        print("\n".join(found.lines()))
        await bench.api.change_routers(name, 1)
        await bench.api.routers_are(name, 1, 60)
    finally:
        running.end()


async def replace(bench: Bench) -> None:
    """The only operator ends, and another begins at once: when is the first new change handled?"""
    await bench.have_services(FEW)
    for number, limit in ((signal.SIGTERM, 4), (signal.SIGKILL, 20)):
        async with bench.operator() as before:
            await before.quiet(120)
            before.end(number)
            began = time.monotonic()
            after = bench.start_operator()
            try:
                await bench.api.change_routers(service_name(1), 2)
                await bench.api.routers_are(service_name(1), 2, 120)
                bench.figure(f"seconds to the first change after {number.name}", time.monotonic() - began, limit)
                await bench.api.change_routers(service_name(1), 1)
                await bench.api.routers_are(service_name(1), 1, 60)
            finally:
                after.end()


async def busy(bench: Bench, seconds: int = BUSY_SECONDS) -> None:
    """All cores are kept busy by others: the operator goes on leading."""
    await bench.have_services(FEW)
    async with bench.operator() as running:
        await running.quiet(120)
        others = keep_cores_busy()
        try:
            await asyncio.sleep(seconds)
            began = time.monotonic()
            await bench.api.change_routers(service_name(2), 2)
            await bench.api.routers_are(service_name(2), 2, 120)
            bench.figure("seconds to a change under load", time.monotonic() - began)
        finally:
            for other in others:
                other.kill()
                other.wait()
        bench.figure("terms", running.terms, 1)
        bench.figure("tracebacks", running.tracebacks, 0)
        await bench.api.change_routers(service_name(2), 1)
        await bench.api.routers_are(service_name(2), 1, 60)


def keep_cores_busy() -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_PROCESSES)]


async def pods(bench: Bench, count: int = PODS) -> None:
    """10,000 pods of engines, as objects without a service: memory and CPU of an operator that begins beside them."""
    known = set(await bench.api.names(POD))
    print(f"  making {max(0, count - len(known))} pods", flush=True)
    rest = (pod for pod in map(engine_pod, range(count)) if pod["metadata"]["name"] not in known)
    await bench.api.create_all(POD, rest)
    await bench.api.pods_run(count, 900)
    async with bench.operator() as running:
        bench.figure("seconds until it is quiet", await running.quiet(600))
        bench.figure("operator CPU seconds until then", running.cpu, 25)
        bench.figure("memory at most", running.memory("VmHWM"), 400, " MiB")
        bench.figure("terms", running.terms, 1)


def engine_pod(number: int) -> dict[str, Any]:
    """As the operator's Deployment makes it, of one of a hundred services; with a node, which spares the scheduler."""
    live = service(number % FEW)
    live["metadata"] |= {"uid": "", "generation": 1}
    plan = make_plan(
        Context.of(live, Images("phasewise/runtime:0.1.0", "vllm/vllm-openai:v0.32.0", "IfNotPresent")), Observed()
    )
    rendered = [m for m in plan.desired if m["kind"] == DEPLOYMENT.name]
    deployment = next(m for m in rendered if m["metadata"]["labels"].get(contract.LABEL_ROLE) == contract.DECODE)
    template = deployment["spec"]["template"]
    spec = {k: v for k, v in template["spec"].items() if k != "serviceAccountName"}
    meta = {**template["metadata"], "name": f"engine-{number:05}", "namespace": NAMESPACE}
    padding = "x" * max(0, POD_BYTES - 2 * len(str(template)))  # managedFields are about as long as the template
    meta["annotations"] = {**template["metadata"].get("annotations", {}), "example.com/padding": padding}
    node = {"nodeName": f"kwok-{number % NODES}"}
    return {"apiVersion": POD.api_version, "kind": POD.name, "metadata": meta, "spec": {**spec, **node}}


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
