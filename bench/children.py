"""`python -m bench.children [N]`: seconds from an InferenceService to all of its children, on the cluster that is up.

Pools of size 0, so that nothing but the operator and the API server is measured; one service at a time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time

from e2e import cluster
from e2e.conftest import quickstart
from e2e.results import quantile

from phasewise_operator.kinds import CHILD_KINDS, INFERENCE_SERVICE, Kind
from phasewise_operator.kube import Kube
from phasewise_runtime import contract

NAMESPACE = "default"
EXPECTED = dict.fromkeys((kind.name for kind in CHILD_KINDS), 0) | {
    "ServiceAccount": 2,
    "Role": 1,
    "RoleBinding": 1,
    "Service": 1,
    "PodDisruptionBudget": 3,
    "Deployment": 3,
}


async def children(kube: Kube, name: str) -> dict[str, int]:
    async def count(kind: Kind) -> int:
        return len((await kube.list(kind, NAMESPACE, labelSelector=f"{contract.LABEL_SERVICE}={name}")).items)

    counts = await asyncio.gather(*(count(kind) for kind in CHILD_KINDS))
    return {kind.name: found for kind, found in zip(CHILD_KINDS, counts, strict=True)}


async def measure(kube: Kube, name: str) -> float:
    manifest = quickstart(name, NAMESPACE)
    for pool in ("prefill", "decode"):
        manifest["spec"][pool]["replicas"] = {"min": 0}
    started = time.monotonic()
    live = await kube.create(INFERENCE_SERVICE, NAMESPACE, manifest)
    while await children(kube, name) != EXPECTED:
        if time.monotonic() - started > 30:
            raise SystemExit(f"{name}: {await children(kube, name)} after 30 s")
        await asyncio.sleep(0.01)
    seconds = time.monotonic() - started
    await kube.delete(INFERENCE_SERVICE, NAMESPACE, name, live["metadata"]["uid"])
    while any((await children(kube, name)).values()):
        await asyncio.sleep(0.2)
    return seconds


async def main(count: int) -> None:
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig_path())
    kube = await Kube.connect()
    try:
        seconds = sorted([await measure(kube, f"bench-{n}") for n in range(count)])
    finally:
        await kube.close()
    print(f"apply -> all {sum(EXPECTED.values())} children, {count} services one by one:")
    print(f"p50 {statistics.median(seconds):.3f} s, p95 {quantile(seconds, 0.95):.3f} s, max {seconds[-1]:.3f} s")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
