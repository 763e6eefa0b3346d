"""What a rollout did to a service's pods, looked at every second from its beginning to its end."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from e2e import cluster, kube
from e2e.rollouts.ground import SLOT, engine_pods, role_of
from phasewise_runtime import contract

EVERY = 1.0


@dataclass
class Seen:
    most_slots: int = 0
    """Held at one moment, by pods that drain, too."""
    least_decode: int = 10**6
    """Decode pods that served at one moment: without one nothing answers."""

    def add(self, pods: list[kube.Object]) -> None:
        self.most_slots = max(self.most_slots, sum(map(slots, pods)))
        serving = [p for p in pods if role_of(p) == contract.DECODE and kube.is_ready(p) and not _is_leaving(p)]
        self.least_decode = min(self.least_decode, len(serving))


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
            with suppress(cluster.ClusterError):  # the API server may not answer for a moment
                seen.add(engine_pods())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def _is_leaving(pod: kube.Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
