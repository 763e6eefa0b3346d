"""Operators of other releases: one that looks after a namespace of ours keeps this one from leading. I/O.

Each release has a Lease of its own, with a label by which it is found and an annotation that names its namespaces. Two
that looked after the same namespace would overwrite each other's children without end. The first come leads; the other
stands by, says so in its log, in a metric and in an Event on its pod, and leads when the first has gone.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client import Gauge

from phasewise_operator.kinds import EVENT, LEASE, POD, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.lease import Ref, Sighting, sighted
from phasewise_operator.settings import DEFAULT_LEASE, Settings
from phasewise_runtime import contract

log = logging.getLogger(__name__)
CALL_SECONDS = 5.0
ABANDONED_SECONDS = 600.0
"""A record that has not been renewed for so long by its own clock is nobody's, however far the clocks are apart. A
release that was killed and uninstalled leaves one behind, and each start would wait for it."""


def overlap(ours: Iterable[str], theirs: Iterable[str]) -> bool:
    """Whether two releases look after the same namespace; none named: after all of them."""
    ours, theirs = set(ours), set(theirs)
    return not ours or not theirs or bool(ours & theirs)


def watched_by(lease: Manifest) -> tuple[str, ...]:
    """The namespaces that a Lease's release looks after; empty: all, as is assumed of a version that does not say."""
    annotations: dict[str, str] = lease["metadata"].get("annotations") or {}
    return tuple(name for name in annotations.get(contract.ANNOTATION_WATCHES, "").split(",") if name)


def is_live(seen: Sighting, lease: Manifest, now: float, wall: datetime.datetime) -> bool:
    """Held, and renewed within its own duration as we measured it."""
    spec = lease.get("spec", {})
    if not seen.holder or now - seen.since > float(spec.get("leaseDurationSeconds") or 0):
        return False
    try:
        renewed = datetime.datetime.fromisoformat(str(spec.get("renewTime")))
    except ValueError:
        return True
    return (wall - renewed).total_seconds() < ABANDONED_SECONDS


@dataclass
class Releases:
    kube: Kube
    settings: Settings
    overlapping: Gauge
    clock: Callable[[], float] = time.monotonic
    _seen: dict[Ref, Sighting] = field(default_factory=dict[Ref, Sighting])
    _said: str = ""
    _said_forbidden: bool = False

    async def leading(self) -> list[Ref]:
        """Leases of other releases that are held and look after a namespace of ours. Raises KubeError."""
        rivals = [lease for lease in await self._live() if overlap(self.settings.watch_namespaces, watched_by(lease))]
        self.overlapping.set(len(rivals))
        await self._say("; ".join(_describe(lease) for lease in rivals))
        return [_ref(lease) for lease in rivals]

    async def _live(self) -> list[Manifest]:
        """Leases of other releases that are held, by namespace and name."""
        wall = datetime.datetime.now(datetime.timezone.utc)
        found = {_ref(lease): lease for lease in await self._list()}
        found.pop((self.settings.namespace, self.settings.lease_name), None)
        now = self.clock()
        self._seen = {ref: sighted(self._seen.get(ref), lease, now) for ref, lease in found.items()}
        return [lease for ref, lease in sorted(found.items()) if is_live(self._seen[ref], lease, now, wall)]

    async def _list(self) -> list[Manifest]:
        """Those with our label, and the one name that operators of versions before use, which set no label."""
        labelled = {"labelSelector": f"{contract.LABEL_NAME}={contract.OPERATOR_NAME}"}
        queries = (labelled, {"fieldSelector": f"metadata.name={DEFAULT_LEASE}"})
        try:
            answers = [await self.kube.call("GET", LEASE.path(None), query=q, seconds=CALL_SECONDS) for q in queries]
        except KubeError as error:
            if error.status != 403:
                raise
            if not self._said_forbidden:
                log.warning("operators of other releases cannot be seen: let no namespace have two (%s)", error)
            self._said_forbidden = True
            return []
        return [lease for answer in answers for lease in answer.get("items", [])]

    async def _say(self, rivals: str) -> None:
        """Once for each change of what there is to say."""
        if rivals == self._said:
            return
        self._said = rivals
        if not rivals:
            log.info("no operator of another release looks after the same namespaces any more")
            return
        ours = ", ".join(self.settings.watch_namespaces) or "all namespaces"
        text = (
            f"standing by: this release is to look after {ours}, but {rivals}. "
            "Set watchNamespaces so that no namespace has two operators, or uninstall one of them"
        )
        log.warning(text)
        await self._record_event(text)

    async def _record_event(self, text: str) -> None:
        """On the operator's own pod; best effort."""
        if not self.settings.pod_uid:
            return
        pod = {"name": self.settings.identity, "namespace": self.settings.namespace, "uid": self.settings.pod_uid}
        event = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"generateName": f"{self.settings.identity}-", "namespace": self.settings.namespace},
            "eventTime": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning",
            "reason": "OverlappingRelease",
            "action": "StandBy",
            "note": text[:1000],
            "reportingController": f"{contract.API_GROUP}/operator",
            "reportingInstance": self.settings.identity,
            "regarding": {"apiVersion": POD.api_version, "kind": POD.name, **pod},
        }
        try:
            await self.kube.create(EVENT, self.settings.namespace, event)
        except KubeError as error:
            log.info("event: %s", error)


def _ref(lease: Manifest) -> Ref:
    return (lease["metadata"]["namespace"], lease["metadata"]["name"])


def _describe(lease: Manifest) -> str:
    namespace, name = _ref(lease)
    watched = ", ".join(watched_by(lease)) or "all namespaces"
    return f"{name} in namespace {namespace} looks after {watched}"
