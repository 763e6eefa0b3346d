"""`make soak`: pools grow and shrink again and again under streams, and no request fails.

Both pools go from one pod to two and back as an external autoscaler does it (kubectl scale poolscaler/...), on a
service of their own. A size is reached when there are exactly as many pods and all are ready.
"""

from __future__ import annotations

import statistics
import sys
import time

from e2e import cluster, kube, operators, service
from e2e.cluster import ClusterError
from e2e.cluster.progress import step, wait_for
from e2e.deploy import bring_up, stop_demo
from e2e.images import ImageError
from e2e.load import Load, latency, load, quantile
from e2e.service import Service
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
        stop_demo()
        soaked = serve()
        lags: list[float] = []
        with load(soaked.url, soaked.model, workers=STREAMS) as running:
            for number in range(1, ROUNDS + 1):
                for replicas, seconds in ((2, UP_SECONDS), (1, DOWN_SECONDS)):
                    lags += [scale(soaked, role, replicas) for role in contract.ENGINE_ROLES]
                    wait_for(f"pools of {replicas}", lambda replicas=replicas: all_have(replicas), seconds, 1)
                print(f"soak: round {number} of {ROUNDS}: {counts(running)}", flush=True)
    except (ClusterError, ImageError, AssertionError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    cluster.kubectl("delete", "infsvc", NAME, "--cascade=foreground", "--timeout=180s")
    return report(running, sorted(lags))


def serve() -> Service:
    """A service of one prefill pod and one decode pod in mode External."""
    manifest = service.example(NAME, NAMESPACE)
    manifest["spec"]["scaling"]["mode"] = "External"
    manifest["spec"]["maxGeneration"] = "120s"
    service.apply(manifest)
    with step("service soak: one prefill pod, one decode pod"):
        return Service.when_ready(manifest)


def scale(soaked: Service, role: str, replicas: int) -> float:
    """Seconds from the scaling of the PoolScaler until the Deployment was written."""
    path = f"deployments/{soaked.deployment(role)['metadata']['name']}"
    began = time.time()
    soaked.scale(role, replicas)
    return wait_for(f"{role} of {replicas}", lambda: operators.writes(began, path), 30)[0][0] - began


def all_have(replicas: int) -> bool:
    """Every pool has exactly so many pods, all ready; those that are being deleted count too."""
    for role in contract.ENGINE_ROLES:
        pods = kube.find("pods", f"{contract.LABEL_SERVICE}={NAME},{contract.LABEL_ROLE}={role}", NAMESPACE)
        if len(pods) != replicas or not all(kube.is_ready(pod) for pod in pods):
            return False
    return True


def counts(running: Load) -> str:
    return f"{len(running.outcomes)} requests answered, {len(running.failed)} failed"


def report(running: Load, lags: list[float]) -> int:
    print(f"soak: {latency(running.outcomes)}")
    print(f"soak: kubectl scale to written p50 {statistics.median(lags):.2f} s, p95 {quantile(lags, 0.95):.2f} s")
    for outcome in running.failed[:10]:
        print(f"soak: {outcome.request.path}: {outcome.answer.error or outcome.answer.finish_reason}")
    steps = 2 * ROUNDS
    print(f"soak: {steps} scale-ups and {steps} scale-downs under {STREAMS} streams: {counts(running)}")
    return 1 if running.failed else 0


if __name__ == "__main__":
    sys.exit(main())
