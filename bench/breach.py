"""`python -m bench.breach [N]`: seconds from a burst, and from the first missed TTFT, to the pool's new replicas.

On the service that `make demo` left running, scaled down again within seconds. N bursts of long prompts, each more than
one prefill pod can compute within the TTFT target; when the Deployment was patched is read from the API server's own
record. Only the operator is measured: the new pod need not start.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from e2e import cluster, kube, operators, table
from e2e.cluster.progress import wait_for
from e2e.load import quantile
from e2e.load_shapes import PromptHeavy

from phasewise_runtime import contract

SERVICE = "quickstart"
NAMESPACE = "default"
PROMPTS = 40
SETTLE_SECONDS = 240


def main(count: int) -> None:
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig_path())
    live = kube.get("infsvc", SERVICE, NAMESPACE)
    before = live["spec"]["scaling"].get("scaleDownStabilization", "300s")
    target = table.seconds(live["spec"]["slo"]["ttft"])
    url = cluster.selected().expose(f"{NAMESPACE}/{SERVICE}:80")
    set_stabilization("4s")
    try:
        lags = [burst(url, live["spec"]["model"]["name"]) for _ in range(count)]
    finally:
        set_stabilization(before)
    report("burst to patched replicas", lags)
    report(f"first missed TTFT ({target:g} s after it) to patched replicas", [max(0.0, lag - target) for lag in lags])


def set_stabilization(duration: str) -> None:
    kube.patch("infsvc", SERVICE, {"spec": {"scaling": {"scaleDownStabilization": duration}}}, NAMESPACE)


def prefill() -> kube.Object:
    return kube.deployment(SERVICE, contract.PREFILL, NAMESPACE)


def burst(url: str, model: str) -> float:
    """Seconds from a burst until the Deployment of prefill was written, from one idle pod on."""
    name = prefill()["metadata"]["name"]
    wait_for("prefill of one pod", lambda: prefill()["spec"]["replicas"] == 1, SETTLE_SECONDS)
    traffic = PromptHeavy(url, model)
    began = time.time()
    with ThreadPoolExecutor(PROMPTS) as pool:
        for _ in range(PROMPTS):
            pool.submit(traffic.send_next)
        wait_for("prefill is to grow", lambda: prefill()["spec"]["replicas"] > 1, 30, 0.2)
    if traffic.failed:
        raise SystemExit(f"{len(traffic.failed)} requests failed: {traffic.failed[0].answer.error}")
    return operators.writes(began, f"deployments/{name}")[0][0] - began


def report(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    print(f"{what}, {len(ordered)} times:")
    print(f"p50 {statistics.median(ordered):.2f} s, p95 {quantile(ordered, 0.95):.2f} s, max {ordered[-1]:.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
