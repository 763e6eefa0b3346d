"""`make fuzz [N]`: no object that anybody can write takes the operator down, nor keeps it from another service.

The operator runs as a process beside the local cluster, on CRDs of "another version": every service has a field that
the operator does not know, and a status may be anything. Cases come from e2e/fuzz_cases.py. Asserted: nothing
unexpected in the operator's log; what the API server refuses, it refuses with the field's name, and so does a condition
of what the operator cannot act on; and a canary, changed all the while, is never observed later than CANARY_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from e2e import cluster
from e2e.fuzz_cases import BASES, Case, Json, cases
from e2e.images import ROOT
from phasewise_operator.kinds import BY_NAME, INFERENCE_SERVICE, POD, Kind, Manifest
from phasewise_operator.kube import Kube, KubeError
from phasewise_runtime import contract

NAMESPACE = "fuzz"
CANARY_SECONDS = 2.0
SETTLE_SECONDS = 20.0
CASES = 2000
WORKERS = 4
LIVE_SERVICES = 24
"""Mutated services at once; the oldest goes first."""
PODS = 100
"""In the namespace: a service may ask for ten thousand."""
NAMES_FIELD = re.compile(r"\b(spec|metadata)\b")
UNEXPECTED = ("Traceback", "unexpected", "round failed", " ERROR ")
_MERGE = "application/merge-patch+json"


@dataclass
class Fuzz:
    """One run. Everything here is what was seen; nothing decides."""

    kube: Kube
    delays: list[float] = field(default_factory=list[float])
    """Of the canary, in seconds."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    services: list[str] = field(default_factory=list[str])
    subjects: list[str] = field(default_factory=list[str])
    """Services whose children, pods and status are edited."""

    # --- the canary ----------------------------------------------------------------------------------------
    async def canary(self) -> None:
        """For ever: change the spec, wait until the status speaks of it."""
        await self.create("canary", BASES[0])
        for number in range(10**9):
            patch = {"spec": {"scaling": {"scaleDownStabilization": f"{300 + number % 60}s"}}}
            live = await self.patch(INFERENCE_SERVICE, "canary", patch)
            began = time.monotonic()
            if not await self.observed("canary", live["metadata"]["generation"], SETTLE_SECONDS):
                self.faults.append(f"the canary's change was not observed in {SETTLE_SECONDS:g} s")
            self.delays.append(time.monotonic() - began)
            await asyncio.sleep(0.3)

    async def observed(self, name: str, generation: int, seconds: float) -> Manifest | None:
        """The service as soon as its status speaks of a generation; None: not in time, or it is gone."""
        due = time.monotonic() + seconds
        while time.monotonic() < due:
            live = await self.kube.get(INFERENCE_SERVICE, NAMESPACE, name)
            if live is None:
                return None
            if ((live.get("status") or {}).get("observedGeneration") or 0) >= generation:
                return live
            await asyncio.sleep(0.02)
        return None

    # --- one case ------------------------------------------------------------------------------------------
    async def play(self, number: int, case: Case) -> None:
        try:
            outcome = await getattr(self, f"_play_{case.target}")(number, case)
        except KubeError as error:
            outcome = self._refused(case, error)
        self.outcomes[f"{case.target} {outcome}"] += 1

    def _refused(self, case: Case, error: KubeError) -> str:
        if not error.invalid:
            return f"{error.status or 'no answer'}"
        if case.target == "service" and not NAMES_FIELD.search(error.message):
            self.faults.append(f"refused without the name of a field: {error.message}; {case}")
        return "refused"

    async def _play_service(self, number: int, case: Case) -> str:
        name = f"case-{number}"
        live = await self.create(name, case.body)
        self.services.append(name)
        if len(self.services) > LIVE_SERVICES:
            await self.kube.call("DELETE", INFERENCE_SERVICE.path(NAMESPACE, self.services.pop(0)))
        found = await self.observed(name, live["metadata"]["generation"], SETTLE_SECONDS)
        if found is None:
            self.faults.append(f"{name} was not observed in {SETTLE_SECONDS:g} s: {case}")
            return "not observed"
        stalled = next(c for c in found["status"]["conditions"] if c["type"] == "Stalled")
        if stalled["status"] == "True" and not NAMES_FIELD.search(stalled["message"]):
            self.faults.append(f"{name}: the condition names no field: {stalled['reason']}: {stalled['message']}")
        return stalled["reason"]

    async def _play_child(self, number: int, case: Case) -> str:
        kind = BY_NAME[case.kind]
        found = await self._children(kind, case)
        if not found:
            return "no child"
        live = found[case.subject % len(found)]
        if "status" in case.body:
            await self.patch(kind, live["metadata"]["name"], case.body, "status")
        elif number % 20 == 0:
            await self.kube.delete(kind, NAMESPACE, live["metadata"]["name"], live["metadata"]["uid"])
        else:
            await self.patch(kind, live["metadata"]["name"], case.body)
        return "written"

    async def _children(self, kind: Kind, case: Case) -> list[Manifest]:
        service = self.subjects[case.subject % len(self.subjects)]
        listing = await self.kube.list(kind, NAMESPACE, labelSelector=f"{contract.LABEL_SERVICE}={service}")
        return listing.items

    async def _play_pod(self, number: int, case: Case) -> str:
        service = self.subjects[case.subject % len(self.subjects)]
        role = (*contract.ENGINE_ROLES, contract.ROUTER)[case.subject % 3]
        labels = {
            contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
            contract.LABEL_SERVICE: service,
            contract.LABEL_ROLE: role,
            **case.body.get("labels", {}),
        }
        meta = {
            "name": f"pod-{number}",
            "labels": {k: v for k, v in labels.items() if v is not None},
            "annotations": {k: v for k, v in case.body.get("annotations", {}).items() if v is not None},
        }
        container = {"name": "engine", "image": "none"}
        spec = {"containers": [container], "nodeSelector": {"phasewise.dev/fuzz": "no-node"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await self.kube.create(POD, NAMESPACE, pod)
        try:
            await self.patch(POD, f"pod-{number}", {"status": case.body["status"]}, "status")
        finally:
            await asyncio.sleep(0.3)
            await self.kube.call("DELETE", POD.path(NAMESPACE, f"pod-{number}"), body={"gracePeriodSeconds": 0})
        return "written"

    async def _play_annotations(self, _: int, case: Case) -> str:
        service = self.subjects[case.subject % len(self.subjects)]
        await self.patch(INFERENCE_SERVICE, service, {"metadata": {"annotations": case.body}})
        return "written"

    async def _play_status(self, _: int, case: Case) -> str:
        service = self.subjects[case.subject % len(self.subjects)]
        live = await self.patch(INFERENCE_SERVICE, service, {"status": case.body}, "status")
        observed = (live.get("status") or {}).get("observedGeneration") or 0
        if observed < live["metadata"]["generation"]:
            found = await self.observed(service, live["metadata"]["generation"], SETTLE_SECONDS)
            if found is None:
                self.faults.append(f"the status of {service} was not written again: {case}")
        return "written"

    # --- the API server ------------------------------------------------------------------------------------
    async def create(self, name: str, spec: Json) -> Manifest:
        manifest = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.name,
            "metadata": {"name": name},
            "spec": spec,
        }
        return await self.kube.call("POST", INFERENCE_SERVICE.path(NAMESPACE), body=manifest)

    async def patch(self, kind: Kind, name: str, body: Json, subresource: str | None = None) -> Manifest:
        """As another manager of fields, such as a person with kubectl."""
        path, query = kind.path(NAMESPACE, name, subresource), {"fieldManager": "fuzz"}
        return await self.kube.call("PATCH", path, query=query, body=body, content_type=_MERGE)

    async def run(self, played: Sequence[Case]) -> None:
        """Play the cases, some at once, while the canary is changed; the subjects must be as they should at the end."""
        for number, base in enumerate(BASES):
            self.subjects.append(f"subject-{number}")
            await self.create(self.subjects[-1], base)
        canary = asyncio.create_task(self.canary())
        numbered = enumerate(played)

        async def work() -> None:
            for number, case in numbered:
                await self.play(number, case)

        workers = [asyncio.create_task(work()) for _ in range(WORKERS)]
        try:
            await first_error(canary, *workers)
        finally:
            for task in (canary, *workers):
                task.cancel()
            await asyncio.gather(canary, *workers, return_exceptions=True)


async def first_error(canary: asyncio.Task[None], *workers: asyncio.Task[None]) -> None:
    """Until all workers have ended; an error of the canary or of a worker is raised at once."""
    left = set(workers)
    while left:
        done, _ = await asyncio.wait({canary, *left}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        left -= done


def another_version(crd: Json) -> Json:
    """The CRD of another version: a field more with a default in every spec, and a status without any shape."""
    changed = copy.deepcopy(crd)
    schema = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    schema["spec"]["properties"]["fresh"] = {"type": "string", "default": "of another version"}
    schema["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return changed


def prepare() -> None:
    """Cluster, CRDs and namespace; nothing is left of an earlier run."""
    cluster.selected().up()
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s")
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        text = yaml.safe_dump(another_version(crd) if path.stem == INFERENCE_SERVICE.plural else crd)
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=text)
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{crd['metadata']['name']}")
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("-n", NAMESPACE, "create", "quota", "pods", f"--hard=pods={PODS}")


@contextlib.contextmanager
def operator(log: Path) -> Generator[None]:
    """The operator as a process, for the namespace of the fuzz."""
    settings = {
        "KUBECONFIG": str(cluster.kubeconfig_path()),
        "PHASEWISE_WATCH_NAMESPACES": NAMESPACE,
        contract.ENV_NAMESPACE: NAMESPACE,
        "PHASEWISE_PORT": "18080",
    }
    with log.open("w") as file:
        command = [sys.executable, "-m", "phasewise_operator"]
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=file, stderr=file)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def unexpected(log: str) -> list[str]:
    return [line for line in log.splitlines() if any(word in line for word in UNEXPECTED)]


async def fuzz(count: int, seed: int) -> Fuzz:
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig_path())
    kube = await Kube.connect()
    try:
        run = Fuzz(kube)
        await run.run(cases(count, seed))
    finally:
        await kube.close()
    return run


def main(count: int, seed: int) -> int:
    prepare()
    log = cluster.selected().audit_log_path().parent / "fuzz-operator.log"
    began = time.monotonic()
    with operator(log):
        run = asyncio.run(fuzz(count, seed))
    seconds = time.monotonic() - began
    run.faults += unexpected(log.read_text())
    for outcome, number in sorted(run.outcomes.items()):
        print(f"  {number:5} {outcome}")
    delays = sorted(run.delays)
    print(
        f"fuzz: {count} objects, seed {seed}, {seconds:.0f} s; the canary was changed {len(delays)} times and observed"
    )
    print(f"after {delays[len(delays) // 2]:.3f} s (median), {delays[-1]:.3f} s at most; {len(run.faults)} faults")
    if delays[-1] > CANARY_SECONDS:
        run.faults.append(f"the canary was observed after {delays[-1]:.1f} s: more than {CANARY_SECONDS:g} s")
    for fault in run.faults[:50]:
        print(f"  {fault[:1000]}")
    print(f"fuzz: the operator's log is {log}")
    return 1 if run.faults else 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*numbers, *(CASES, int(time.time()))[len(numbers) :]))
