"""`make soak`: pools that grow and shrink again and again under streams, and no request that fails for it.

Both pools go from one pod to two and back, an outside autoscaler's way (kubectl scale poolscaler/...), on a service of
their own. A size counts as reached when as many pods are ready, or when the pod that was too many is gone.
"""

from __future__ import annotations

import statistics
import sys
import time

import yaml

from e2e import cluster, kube, operators
from e2e.cluster import ClusterError
from e2e.conftest import example
from e2e.demo import SERVICE as DEMO
from e2e.images import ImageError
from e2e.load import Load, load
from e2e.results import latency, quantile
from e2e.stack import bring_up, step
from phasewise_runtime import contract

NAME, NAMESPACE = "soak", "default"
ROUNDS = 10
"""Of two scale-ups and two scale-downs each."""
STREAMS = 8
"""Requests at once. Each is a stream in decode; the router puts every second one together for its client."""
UP_SECONDS, DOWN_SECONDS = 300, 180


def main() -> int:
    try:
        bring_up()
        url, model = serve()
        lags: list[float] = []
        with load(url, model, workers=STREAMS) as running:
            for number in range(1, ROUNDS + 1):
                for replicas, seconds in ((2, UP_SECONDS), (1, DOWN_SECONDS)):
                    lags += [ask_for(role, replicas) for role in contract.ENGINE_ROLES]
                    kube.wait_for(f"pools of {replicas}", lambda wanted=replicas: all_are(wanted), seconds, 1)
                print(f"soak: round {number} of {ROUNDS}: {told(running)}", flush=True)
    except (ClusterError, ImageError, AssertionError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    cluster.kubectl("delete", "infsvc", NAME, "--cascade=foreground", "--timeout=180s")
    return report(running, sorted(lags))


def serve() -> tuple[str, str]:
    """The service, alone on the cluster; its URL and the model's name."""
    if any(live["metadata"]["name"] == DEMO for live in kube.find("infsvc")):
        with step(f"stopping service {DEMO}: two cores do not hold both"):
            cluster.kubectl("delete", "infsvc", DEMO, "--cascade=foreground", "--timeout=180s")
    manifest = example(NAME, NAMESPACE)
    manifest["spec"]["scaling"]["mode"] = "External"
    manifest["spec"]["maxGenerationSeconds"] = 120
    kube.apply(yaml.safe_dump(manifest), NAMESPACE)
    with step("service soak: one prefill pod, one decode pod"):
        kube.wait_ready(NAME, NAMESPACE, seconds=900)
    return cluster.selected().expose(f"{NAMESPACE}/{NAME}:80"), manifest["spec"]["model"]["name"]


def ask_for(role: str, replicas: int) -> float:
    """Ask the pool's scaler; seconds until its Deployment was written."""
    path = f"deployments/{kube.deployment(NAME, role)['metadata']['name']}"
    asked = time.time()
    cluster.kubectl("-n", NAMESPACE, "scale", f"poolscaler/{NAME}-{role}", f"--replicas={replicas}")
    return kube.wait_for(f"{role} of {replicas}", lambda: operators.writes(asked, path), 30, 0.5)[0][0] - asked


def all_are(replicas: int) -> bool:
    """Every pool has exactly so many pods, all ready; those on their way out count too."""
    for role in contract.ENGINE_ROLES:
        pods = kube.find("pods", f"{contract.LABEL_SERVICE}={NAME},{contract.LABEL_ROLE}={role}", NAMESPACE)
        if len(pods) != replicas or not all(kube.is_ready(pod) for pod in pods):
            return False
    return True


def told(running: Load) -> str:
    return f"{len(running.outcomes)} requests answered, {len(running.failed)} failed"


def report(running: Load, lags: list[float]) -> int:
    print(f"soak: {latency(running.outcomes)}")
    print(f"soak: asked to written p50 {statistics.median(lags):.2f} s, p95 {quantile(lags, 0.95):.2f} s")
    for outcome in running.failed[:10]:
        print(f"soak: {outcome.request.path}: {outcome.answer.error or outcome.answer.finish_reason}")
    steps = 2 * ROUNDS
    print(f"soak: {steps} scale-ups and {steps} scale-downs under {STREAMS} streams: {told(running)}")
    return 1 if running.failed else 0


if __name__ == "__main__":
    sys.exit(main())
