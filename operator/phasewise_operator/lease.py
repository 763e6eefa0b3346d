"""Leader election by a Lease: its holder acts, and stops at once when it cannot renew it.

The protocol is client-go's (tools/leaderelection): a holder is replaced only after its record has not changed for a
lease duration on the observer's own clock, so clocks need not agree. A Lease does not fence: two operators that overlap
for a moment apply the same intent, which is harmless.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from phasewise_operator.kinds import LEASE, Manifest
from phasewise_operator.kube import Kube, KubeError
from phasewise_operator.settings import Settings

log = logging.getLogger(__name__)
CALL_SECONDS = 3.0
_CONFLICT = 409


@dataclass(frozen=True)
class Sighting:
    """A Lease record, and when on our own clock it was first seen unchanged."""

    holder: str
    renewed: str
    since: float


def may_take(seen: Sighting, identity: str, lease_seconds: float, now: float) -> bool:
    """Free, ours from an earlier life, or not renewed for a lease duration as we measured it."""
    return not seen.holder or seen.holder == identity or now - seen.since > lease_seconds


class Election:
    def __init__(self, kube: Kube, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._held_until = float("-inf")
        self._seen: Sighting | None = None

    def leading(self) -> bool:
        """Asked before each write. True only within the renew deadline of the last renewal that was confirmed."""
        return self._clock() < self._held_until

    async def acquire(self) -> None:
        """Returns when the Lease is ours; tries for ever, also while the API server does not answer."""
        while not await self._attempt():
            await asyncio.sleep(self._settings.retry_seconds)
        log.info("leading as %s", self._settings.identity)

    async def hold(self) -> None:
        """Renews; returns as soon as the Lease is lost or could not be renewed within the deadline."""
        while self.leading():
            remaining = self._held_until - self._clock()
            await asyncio.sleep(min(self._settings.retry_seconds, max(0.0, remaining)))
            if not self.leading():
                break
            await self._attempt()
        log.warning("no longer leading: the lease was taken or could not be renewed")

    async def release(self) -> None:
        """Give the Lease up, so that another need not wait for it to run out. Best effort."""
        held, self._held_until = self.leading(), float("-inf")
        if not held:
            return
        try:
            lease = await self._read()
            if lease and lease["spec"].get("holderIdentity") == self._settings.identity:
                lease["spec"]["holderIdentity"] = ""
                await self._write(lease)
        except KubeError as error:
            log.info("lease not released: %s", error)

    async def _attempt(self) -> bool:
        """One try to take or to renew; False also where the API server did not answer."""
        started = self._clock()
        try:
            lease = await self._read()
            if lease is None:
                await self._kube.create(LEASE, self._settings.namespace, self._record(None))
            elif self._may_take(lease):
                await self._write(self._record(lease))
            else:
                self._held_until = float("-inf")
                return False
        except KubeError as error:
            if error.status != _CONFLICT:
                log.warning("lease: %s", error)
            return False
        self._held_until = started + self._settings.renew_deadline_seconds
        return True

    def _may_take(self, lease: Manifest) -> bool:
        spec = lease.get("spec", {})
        holder, renewed = spec.get("holderIdentity") or "", str(spec.get("renewTime"))
        now = self._clock()
        if self._seen is None or (self._seen.holder, self._seen.renewed) != (holder, renewed):
            self._seen = Sighting(holder, renewed, now)
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
        meta = {"name": self._settings.lease_name, "namespace": self._settings.namespace}
        if lease:
            meta["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": meta, "spec": spec}

    async def _read(self) -> Manifest | None:
        path = LEASE.path(self._settings.namespace, self._settings.lease_name)
        try:
            return await self._kube.call("GET", path, seconds=CALL_SECONDS)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, lease: Manifest) -> None:
        await self._kube.replace(LEASE, self._settings.namespace, self._settings.lease_name, lease, CALL_SECONDS)
