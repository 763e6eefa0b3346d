"""`python -m bench.children [N]`: seconds from an InferenceService to all of its children, on the cluster that is up.

Pools of size 0, so that nothing but the operator and the API server is measured; one service at a time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections import Counter

from e2e import cluster
from e2e.load import quantile
from e2e.service import quickstart

from phasewise_operator.kinds import CHILD_KINDS, INFERENCE_SERVICE, Kind, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.render.context import Context, Images, Permissions
from phasewise_runtime import contract

NAMESPACE = "default"


def manifest_of(name: str) -> Manifest:
    manifest = quickstart(name, NAMESPACE)
    for pool in ("prefill", "decode"):
        manifest["spec"][pool]["replicas"] = {"min": 0, "max": 1}
    return manifest


def expected_children() -> Counter[str]:
    """Number of children by kind, as the operator itself plans them."""
    manifest = manifest_of("bench")
    manifest["metadata"] |= {"uid": "", "generation": 1}
    ctx = Context.of(manifest, Images("runtime", "engine", "IfNotPresent"), permissions=Permissions(metrics_readers=()))
    return Counter(child["kind"] for child in make_plan(ctx, Observed()).desired)


async def children(kube: Kube, name: str) -> Counter[str]:
    async def count(kind: Kind) -> int:
        return len((await kube.list(kind, NAMESPACE, labelSelector=f"{contract.LABEL_SERVICE}={name}")).items)

    counts = await asyncio.gather(*(count(kind) for kind in CHILD_KINDS))
    return Counter({kind.name: found for kind, found in zip(CHILD_KINDS, counts, strict=True)})


async def measure(kube: Kube, name: str, expected: Counter[str]) -> float:
    started = time.monotonic()
    live = await kube.create(INFERENCE_SERVICE, NAMESPACE, manifest_of(name))
    while await children(kube, name) != expected:
        if time.monotonic() - started > 30:
            raise SystemExit(f"{name}: {await children(kube, name)} after 30 s")
        await asyncio.sleep(0.01)
    seconds = time.monotonic() - started
    await kube.delete(INFERENCE_SERVICE, NAMESPACE, name, live["metadata"]["uid"])
    while (await children(kube, name)).total():
        await asyncio.sleep(0.2)
    return seconds


async def main(count: int) -> None:
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig_path())
    expected = expected_children()
    kube = await Kube.connect()
    try:
        seconds = sorted([await measure(kube, f"bench-{n}", expected) for n in range(count)])
    finally:
        await kube.close()
    print(f"apply -> all {expected.total()} children, {count} services one after another:")
    print(f"p50 {statistics.median(seconds):.3f} s, p95 {quantile(seconds, 0.95):.3f} s, max {seconds[-1]:.3f} s")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
