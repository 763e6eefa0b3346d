"""Leader election by a Lease: its holder acts, and stops at once when it cannot renew it.

The protocol is client-go's (tools/leaderelection): a holder is replaced only after its record has not changed for a
lease duration on the observer's own clock, so clocks need not agree. A Lease does not fence, so writes end before
another may take over (`seconds_to_write`). Runs in a thread of its own (lease_thread.py); what the main thread asks,
`leading` and `seconds_to_write`, reads a single number and never waits.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from phasewise_operator.kinds import LEASE, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.settings import Settings
from phasewise_runtime import contract

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.5
"""After a renewal that failed: it is tried again until the renew deadline."""
_CONFLICT = 409


Ref = tuple[str, str]
"""Namespace and name of a Lease."""
RIVAL_SECONDS = 5.0
"""Pause between two looks at another release's Lease, which may be there for good: they are lists of all Leases."""


@dataclass(frozen=True)
class Sighting:
    """A Lease record, and when on our own clock it was first seen unchanged."""

    holder: str
    renewed: str
    since: float


def may_take(seen: Sighting, identity: str, lease_seconds: float, now: float) -> bool:
    """Free, ours from an earlier life, or not renewed for a lease duration as we measured it."""
    return not seen.holder or seen.holder == identity or now - seen.since > lease_seconds


def sighted(before: Sighting | None, lease: Manifest, now: float) -> Sighting:
    """The Lease as it is seen now; it is as old as the first sight of the same record."""
    spec = lease.get("spec", {})
    holder, renewed = spec.get("holderIdentity") or "", str(spec.get("renewTime"))
    if before is not None and (before.holder, before.renewed) == (holder, renewed):
        return before
    return Sighting(holder, renewed, now)


class Rivals(Protocol):
    """Operators of other releases (rivals.py)."""

    async def leading(self) -> Sequence[Ref]:
        """Their Leases, of those that look after a namespace of ours."""
        ...


class Election:
    """`rivals` are asked before the Lease is taken and again when it is: of two releases that begin at the same moment
    each sees the other's Lease at the second time at the latest, so never do both lead. If both give up at that, the
    first by namespace and name tries again first."""

    def __init__(
        self, kube: Kube, settings: Settings, rivals: Rivals, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._rivals = rivals
        self._clock = clock
        self._renewed = float("-inf")
        """When the last renewal that was confirmed was sent: before then nobody can have seen it."""
        self._stored: Manifest | None = None
        """Our Lease as we last wrote it."""
        self._seen: Sighting | None = None
        self._call_seconds = settings.renew_deadline_seconds / 2  # two slow answers do not end a term
        self.standby = "the lease has not been read yet"
        """Why this operator does not lead."""
        self.pause = settings.retry_seconds
        """How long to wait before the next try to take the Lease."""

    def leading(self) -> bool:
        """True only within the renew deadline of the last renewal that was confirmed."""
        return self._clock() < self._renewed + self._settings.renew_deadline_seconds

    def seconds_to_write(self) -> float:
        """How long a write that begins now may take: until another may take over. 0: it must not begin."""
        renewed, now = self._renewed, self._clock()
        if now >= renewed + self._settings.renew_deadline_seconds:
            return 0.0
        return renewed + self._settings.lease_seconds - now

    def let_go(self) -> None:
        """Stop leading at once. The Lease is left to run out: until then writes in flight may be carried out."""
        self._renewed, self._stored = float("-inf"), None

    async def take(self) -> bool:
        """One try to become the leader; False also where the API server did not answer."""
        try:
            return await self._take()
        except KubeError as error:
            self.standby = f"lease: {error}"
            if error.status != _CONFLICT:
                log.warning("lease: %s", error)
            return False

    async def _take(self) -> bool:
        self.pause = self._settings.retry_seconds
        lease = await self._read()
        if lease is not None and not self._may_take(lease):
            self.standby = f"{lease['spec']['holderIdentity']} leads"
            return False
        if await self._rivals.leading():
            self._stand_by(RIVAL_SECONDS)
            return False
        began = self._clock()
        self._stored = await self._write(self._record(lease))
        if rivals := await self._rivals.leading():
            await self.release()
            ours = (self._settings.namespace, self._settings.lease_name)
            self._stand_by(self.pause if ours < min(rivals) else RIVAL_SECONDS)
            return False
        self._renewed = began
        log.info("leading as %s", self._settings.identity)
        return self.leading()

    def _stand_by(self, pause: float) -> None:
        self.standby = "an operator of another release looks after the same namespaces"
        self.pause = pause

    async def hold(self, stop: asyncio.Event, alive: Callable[[], bool]) -> None:
        """Renews; returns as soon as the Lease is lost, or is not to be held: by `stop`, or because nothing is alive.

        A renewal that fails is tried again until the renew deadline.
        """
        pause = self._settings.retry_seconds
        while not await is_set_within(stop, min(pause, max(0.0, self._deadline - self._clock()))):
            if not alive():
                self.let_go()
                log.error("no longer leading: the event loop hangs; the lease is left to run out")
                return
            if not self.leading():
                log.warning("no longer leading: the lease was taken or could not be renewed")
                return
            pause = self._settings.retry_seconds if await self._renew() else RETRY_SECONDS

    @property
    def _deadline(self) -> float:
        return self._renewed + self._settings.renew_deadline_seconds

    async def _renew(self) -> bool:
        """One try, without a look at the Lease first: the API server refuses it if another has written meanwhile."""
        began = self._clock()
        try:
            lease = self._stored or await self._read()
            if lease is not None and lease["spec"].get("holderIdentity") != self._settings.identity:
                self.let_go()
                return False
            self._stored = await self._write(self._record(lease))
        except KubeError as error:
            self._stored = None  # perhaps carried out: the next try reads it
            if error.status != _CONFLICT:
                log.warning("lease: %s", error)
            return False
        self._renewed = began
        return True

    async def release(self) -> None:
        """Give the Lease up, so that another need not wait for it to run out. Best effort."""
        self._renewed = float("-inf")
        try:
            lease = self._stored or await self._read()
            if lease and lease["spec"].get("holderIdentity") == self._settings.identity:
                self._stored = None
                await self._write({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except KubeError as error:
            log.info("lease not released: %s", error)

    def _may_take(self, lease: Manifest) -> bool:
        now = self._clock()
        self._seen = sighted(self._seen, lease, now)
        return may_take(self._seen, self._settings.identity, self._settings.lease_seconds, now)

    def _record(self, lease: Manifest | None) -> Manifest:
        """The Lease to write: renewed, and with another transition where the holder changes."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old: Manifest = lease["spec"] if lease else {}
        kept = old.get("holderIdentity") == self._settings.identity
        spec = {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": int(self._settings.lease_seconds),
            "acquireTime": old.get("acquireTime", now) if kept else now,
            "renewTime": now,
            "leaseTransitions": old.get("leaseTransitions", 0) + (0 if kept or lease is None else 1),
        }
        meta: Manifest = {
            "name": self._settings.lease_name,
            "namespace": self._settings.namespace,
            "labels": {contract.LABEL_NAME: contract.OPERATOR_NAME},
            "annotations": {contract.ANNOTATION_WATCHES: ",".join(self._settings.watch_namespaces)},
        }
        if lease:
            meta["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": meta, "spec": spec}

    def _timeout(self) -> float:
        """Of a call: none goes on after the renew deadline."""
        left = self._deadline - self._clock()
        return min(self._call_seconds, left) if left > 0 else self._call_seconds

    async def _read(self) -> Manifest | None:
        path = LEASE.path(self._settings.namespace, self._settings.lease_name)
        try:
            return await self._kube.call("GET", path, seconds=self._timeout())
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, lease: Manifest) -> Manifest:
        """Returns the Lease as it is stored. Raises KubeError 409 where another has written since it was read."""
        name, namespace = self._settings.lease_name, self._settings.namespace
        if "resourceVersion" in lease["metadata"]:
            return await self._kube.replace(LEASE, namespace, name, lease, self._timeout())
        return await self._kube.create(LEASE, namespace, lease)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
