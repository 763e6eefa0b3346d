"""A service's pools as the cluster has them, and what changes their sizes."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from e2e import cluster, kube
from e2e.conftest import Service


def set_mode(service: Service, mode: str) -> None:
    kube.patch("infsvc", service.name, {"spec": {"scaling": {"mode": mode}}}, service.namespace)


def set_stabilization(service: Service, duration: str) -> None:
    kube.patch("infsvc", service.name, {"spec": {"scaling": {"scaleDownStabilization": duration}}}, service.namespace)


def is_half_read(service: Service) -> bool:
    state, reason, message = condition(service, "ScalingActive")
    return (state, reason) == ("False", "Unreadable") and "1 of 2 prefill" in message


def ask_for(service: Service, role: str, replicas: int) -> None:
    cluster.kubectl("-n", service.namespace, "scale", f"poolscaler/{service.name}-{role}", f"--replicas={replicas}")


def deployment(service: Service, role: str) -> kube.Object:
    return kube.deployment(service.name, role, service.namespace)


def size(service: Service, role: str) -> int:
    return deployment(service, role)["spec"]["replicas"]


def condition(service: Service, kind: str) -> tuple[str, str, str]:
    return kube.condition(kube.get("infsvc", service.name, service.namespace), kind)


@contextmanager
def sizes(service: Service, role: str) -> Generator[list[int]]:
    """Every size that a pool is seen to be given, in order."""
    seen: list[int] = []
    stop = threading.Event()

    def follow() -> None:
        while not stop.wait(0.5):
            if seen[-1:] != [now := size(service, role)]:
                seen.append(now)

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        try:
            yield seen
        finally:
            stop.set()
    following.result()


def ready_pods(service: Service, role: str) -> int:
    return sum(kube.is_ready(p) for p in kube.pods(service.name, role, service.namespace))
