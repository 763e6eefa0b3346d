"""What a simulated rollout is about: versions of a spec, their Deployments, and pods."""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[str, str]
"""Role and revision."""


@dataclass(eq=False)
class Pod:
    gpus: int
    template: int
    scheduled: bool = False
    ready: bool = False
    available: bool = False
    proved: bool = False
    """It has handed KV over, as the routers say."""
    terminating: bool = False
    cordoned: bool = False

    def stop(self) -> None:
        self.terminating, self.ready, self.available, self.proved = True, False, False, False


@dataclass(frozen=True)
class Version:
    """One version of the spec: what its pods are, by role."""

    revisions: dict[str, str]
    fingerprint: str
    gpus: dict[str, int]
    good: bool = True
    """Its pods get ready."""
    flows: bool = True
    """Its pods hand KV over."""


@dataclass
class Deployment:
    key: Key
    fingerprint: str
    gpus: int
    roles: frozenset[str]
    """Of the version that made it."""
    good: bool
    flows: bool = True
    replicas: int = 0
    served: bool = False
    planned: bool = True
    failed: str = ""
    """Its mark: the version whose rollout failed."""
    unready: int = 0
    """Steps with pods, of which none was ever ready."""
    template: int = 0
    surge: int = 0
    pods: list[Pod] = field(default_factory=list)

    @property
    def staying(self) -> list[Pod]:
        return [p for p in self.pods if not p.terminating]

    @property
    def ready(self) -> int:
        return sum(p.ready for p in self.staying)

    @property
    def leaving(self) -> int:
        return sum(p.ready and p.cordoned for p in self.staying)

    @property
    def outdated(self) -> list[Pod]:
        return [p for p in self.staying if p.template != self.template]

    @property
    def proved(self) -> int:
        return sum(p.available and p.proved for p in self.staying)

    def delete_pods(self, count: int) -> None:
        """As the ReplicaSet controller does: those that are not ready first, then the cheap ones, which are those on
        drained nodes, and those without requests."""
        ordered = sorted(self.staying, key=lambda p: (p.ready, p.scheduled, not p.cordoned, p.proved))
        for pod in ordered[: max(0, count)]:
            pod.stop()
            if not pod.scheduled:
                self.pods.remove(pod)
