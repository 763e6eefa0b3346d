"""What a rollout did to a service's pods, looked at every second from its beginning to its end."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from e2e import cluster, kube
from e2e.rollouts.ground import SLOT, engine_pods
from phasewise_runtime import contract

EVERY = 1.0


@dataclass
class Seen:
    most_slots: int = 0
    """Held at one moment, by pods that drain, too."""
    least_decode: int = 10**6
    """Decode pods that served at one moment: without one nothing answers."""
    missed: int = 0
    """Looks that the API server did not answer."""
    restarts: dict[str, int] = field(default_factory=dict[str, int])
    """Of engine containers, by pod."""

    def add(self, pods: list[kube.Object]) -> None:
        self.most_slots = max(self.most_slots, sum(map(slots, pods)))
        serving = [p for p in pods if _role(p) == contract.DECODE and kube.is_ready(p) and not _is_leaving(p)]
        self.least_decode = min(self.least_decode, len(serving))
        for pod in pods:
            for container in pod["status"].get("containerStatuses", []):
                self.restarts[pod["metadata"]["name"]] = container["restartCount"]


def slots(pod: kube.Object) -> int:
    """Accelerators that a pod holds: none once its containers have ended."""
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    limits = (container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"])
    return sum(int(limit.get(SLOT, 0)) for limit in limits)


@contextmanager
def observed() -> Generator[Seen]:
    seen, stop = Seen(), threading.Event()

    def look() -> None:
        while not stop.wait(EVERY):
            try:
                seen.add(engine_pods())
            except cluster.ClusterError:
                seen.missed += 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def _role(pod: kube.Object) -> str:
    return pod["metadata"]["labels"].get(contract.LABEL_ROLE, "")


def _is_leaving(pod: kube.Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
