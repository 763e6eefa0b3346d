"""History -> what the routers say of KV transfer: which pods hand KV over, and which paths between pods fail. Pure.

A path is a pair of a prefill and a decode pod that can read each other's KV. Routers try each new pod with a canary
before it takes traffic, and judge every request after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from phasewise_operator.scaling.signals.exposition import Labels
from phasewise_operator.scaling.signals.history import History, Newest, ScrapeTarget
from phasewise_operator.scaling.types import Coverage
from phasewise_runtime import contract

NO_ROUTERS: Final = Coverage(0, 0)
LARGEST: Final = 2.5e11
"""What is above it is no count, and as a Unix time it is beyond the year 9999."""


@dataclass(frozen=True, order=True)
class FailedPath:
    """`prefill`, `decode`: names of pods. `reason`: the router's word, such as transfer_failed."""

    prefill: str
    decode: str
    reason: str


@dataclass(frozen=True)
class PodProof:
    """How the tries of one engine pod went."""

    flows: bool
    """KV flows between it and a pod of the other role; False: between it and none that was tried."""
    proved_at: float | None = None
    """Unix time of its last transfer that was proved; None: the routers do not say."""
    canary_bytes: int | None = None
    """Bytes that the connector moved for its canary."""


@dataclass(frozen=True)
class KvEvidence:
    """What all routers of a service say together."""

    pods: Mapping[str, PodProof] = field(default_factory=dict[str, PodProof])
    """By name of an engine pod; one that was not tried yet is absent."""
    failed: tuple[FailedPath, ...] = ()
    proved_paths: int = 0
    paths: int = 0
    routers: Coverage = NO_ROUTERS
    """Over how many of the ready routers: those that were read, now or earlier."""
    proving: bool | None = None
    """Whether the routers prove pods. False: all are of a version that does not. None: not known yet."""

    @property
    def proved(self) -> frozenset[str] | None:
        """Names of the pods that hand KV over. None: these routers prove none, so being ready has to do. Before they
        could be asked no pod is proved."""
        return None if self.proving is False else frozenset(name for name, pod in self.pods.items() if pod.flows)

    @property
    def judgement(self) -> object:
        """What somebody may act on: not times, and not how many paths were used so far."""
        return {name: pod.flows for name, pod in self.pods.items()}, self.failed

    def awaits_proof(self, expected: Iterable[ScrapeTarget]) -> bool:
        """Whether a proof may come or a failure may end without traffic. `expected`: pods that are ready. A pool
        whose counterpart has no pod waits for nothing."""
        names = {role: {t.name for t in expected if t.role == role} for role in contract.ENGINE_ROLES}
        if not self.proving or not all(names.values()):
            return False
        flows = {name for name, pod in self.pods.items() if pod.flows}
        return bool(self.failed) or not all(found <= flows for found in names.values())


NO_EVIDENCE: Final = KvEvidence()
"""Before the first round."""


def kv_evidence(
    history: History, expected: Sequence[ScrapeTarget], before: KvEvidence = NO_EVIDENCE, patient: bool = True
) -> KvEvidence:
    """`expected`: the pods, routers too, that are ready and stay. `before`: the evidence of the last round. `patient`:
    False once nothing was heard of the routers for so long that they are taken to prove nothing.

    Of whatever age: how the last try went does not change with time, and a scrape that fails proves nothing. Where
    routers disagree, a failure counts: it is the engines that fail, whoever saw it, and the router that did sends less
    there. One that has not tried a pod says nothing of it, nor does one that has just begun: what was known of a pod
    stays until some router has tried it again. Routers on their way out try nothing any more, so they are not asked.
    """
    asked = [target for target in expected if target.role == contract.ROUTER]
    routers = [history.newest[t.uid] for t in asked if t.uid in history.newest]
    pods = _pods(routers)
    engines = {t.name for t in expected if t.role in contract.ENGINE_ROLES}
    kept = {name: pod for name, pod in before.pods.items() if name in engines and name not in pods}
    failed = {(path.prefill, path.decode): path for path in sorted(_failed_paths(routers), reverse=True)}
    failed |= {(p.prefill, p.decode): p for p in before.failed if p.prefill in kept or p.decode in kept}
    proved, total = _paths(routers) or (before.proved_paths, before.paths)
    return KvEvidence(
        pods={**pods, **kept},
        failed=tuple(sorted(failed.values())),
        proved_paths=max(0, min(proved, total - len(failed))),
        paths=total,
        routers=Coverage(len(routers), len(asked)),
        proving=_proving(routers, len(asked), before.proving, patient),
    )


def _proving(routers: Sequence[Newest], of: int, before: bool | None, patient: bool) -> bool | None:
    if any(_gauges(router, contract.METRIC_KV_PATHS) for router in routers):
        return True
    if routers and len(routers) == of:
        return False
    return False if before is None and not patient else before


def _pods(routers: Sequence[Newest]) -> dict[str, PodProof]:
    flows, proved_at, moved = (
        _by_pod(routers, family)
        for family in (contract.METRIC_KV_TRANSFER_OK, contract.METRIC_KV_PROVED_AT, contract.METRIC_KV_CANARY_BYTES)
    )
    return {
        pod: PodProof(
            flows=all(values),
            proved_at=max(proved_at.get(pod, ()), default=None),
            canary_bytes=int(max(moved[pod])) if pod in moved else None,
        )
        for pod, values in flows.items()
    }


def _by_pod(routers: Sequence[Newest], family: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for router in routers:
        for labels, value in _gauges(router, family).items():
            found.setdefault(dict(labels).get("pod", ""), []).append(value)
    return found


def _failed_paths(routers: Sequence[Newest]) -> set[FailedPath]:
    return {
        FailedPath(of.get("prefill", ""), of.get("decode", ""), of.get("reason", ""))
        for router in routers
        for labels, value in _gauges(router, contract.METRIC_KV_FAILED_PATH).items()
        if value == 1 and (of := dict(labels))
    }


def _paths(routers: Sequence[Newest]) -> tuple[int, int] | None:
    """Proved ones and all, by the router that knows most. None: no router says."""
    counts = [found for router in routers if (found := _gauges(router, contract.METRIC_KV_PATHS))]
    if not counts:
        return None
    proved = (("state", contract.KV_PATH_STATES[0]),)
    return int(max(found.get(proved, 0.0) for found in counts)), int(max(sum(found.values()) for found in counts))


def _gauges(router: Newest, family: str) -> Mapping[Labels, float]:
    found = router.scrape.metrics.gauges.get(family, {})
    return {labels: value for labels, value in found.items() if 0 <= value < LARGEST}
