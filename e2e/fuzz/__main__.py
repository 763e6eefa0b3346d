"""`make fuzz`, or `python -m e2e.fuzz [OBJECTS [SEED]]`: some ten minutes for 2,000 objects; no engine and no image.

The operator runs as a process beside the local cluster, on CRDs of "another version": every service has a field that
the operator does not know, and a status may be anything. A person's cluster is better not used: set
PHASEWISE_CLUSTER_NAME and PHASEWISE_STATE to others, as `make fuzz` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import yaml

from e2e import cluster
from e2e.fuzz.edits import cases
from e2e.fuzz.play import CANARY_SECONDS, Fuzz
from e2e.fuzz.specs import Json
from e2e.images import ROOT
from phasewise_operator.kinds import INFERENCE_SERVICE
from phasewise_operator.kube import Kube
from phasewise_runtime import contract

NAMESPACE = "fuzz"
CASES = 2000
PODS = 100
"""In the namespace: a service may ask for ten thousand."""
UNEXPECTED = ("Traceback", "unexpected", "round failed", " ERROR ")
FAULTS_SHOWN = 50


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
    quota(NAMESPACE)


def quota(namespace: str) -> None:
    """A namespace of few pods."""
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("-n", namespace, "create", "quota", "pods", f"--hard=pods={PODS}")


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


async def fuzz(count: int, seed: int, namespace: str = NAMESPACE) -> Fuzz:
    """Beside an operator that runs."""
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig_path())
    kube = await Kube.connect()
    try:
        run = Fuzz(kube, namespace)
        await run.prepare()
        await run.run(cases(count, seed))
        await run.check_repaired()
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
    slowest = max(run.delays)
    if slowest > CANARY_SECONDS:
        run.faults.append(f"the canary was observed after {slowest:.1f} s: more than {CANARY_SECONDS:g} s")
    for fault in run.faults[:FAULTS_SHOWN]:
        print(f"  {fault[:1000]}")
    median = statistics.median(run.delays)
    print(
        f"fuzz: {count} objects, seed {seed}, {seconds:.0f} s, {len(run.faults)} faults; {len(run.delays)} changes of"
    )
    print(f"the canary were observed after {median:.3f} s (median), {slowest:.3f} s at most")
    print(f"fuzz: the operator's log is {log}")
    return 1 if run.faults else 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*numbers, *(CASES, int(time.time()))[len(numbers) :]))
