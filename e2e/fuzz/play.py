"""Plays cases against a real API server, while a canary shows whether the operator still acts on other services.

What the API server refuses, it must refuse with the field's name, and so must a condition of what the operator cannot
act on. A canary, changed all the while, must be observed soon; and at the end every service that was edited must have
its children again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from e2e import cluster
from e2e.fuzz.edits import Case
from e2e.fuzz.specs import BASES, NOWHERE, Json
from phasewise_operator.kinds import BY_NAME, CHILD_KINDS, INFERENCE_SERVICE, POD, Kind, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.observed import owner_uid
from phasewise_runtime import contract

CANARY_SECONDS = 2.0
SETTLE_SECONDS = 20.0
START_SECONDS = 60.0
WORKERS = 4
Child: TypeAlias = tuple[str, str]
"""Kind and name."""
LIVE_SERVICES = 24
"""Mutated services at once; the oldest goes first."""
NAMES_FIELD = re.compile(r"\b(spec|metadata)\.[A-Za-z]")
"""Which one of the spec: the word alone helps nobody."""
_MERGE = "application/merge-patch+json"


@dataclass
class Fuzz:
    """One run. Everything here is what was seen; nothing decides."""

    kube: Kube
    namespace: str
    delays: list[float] = field(default_factory=list[float])
    """Of the canary, in seconds."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    services: list[str] = field(default_factory=list[str])
    subjects: list[str] = field(default_factory=list[str])
    """Services whose children, pods and status are edited."""
    children: dict[str, set[Child]] = field(default_factory=dict[str, "set[Child]"])
    """Of each subject, as the operator made them."""

    # --- the canary ----------------------------------------------------------------------------------------
    async def canary(self) -> None:
        """For ever: change the spec, wait until the status speaks of it."""
        for number in range(10**9):
            patch = {"spec": {"scaling": {"scaleDownStabilization": f"{300 + number % 60}s"}}}
            live = await self.patch(INFERENCE_SERVICE, "canary", patch)
            began = time.monotonic()
            try:
                if not await self.observed("canary", live["metadata"]["generation"], SETTLE_SECONDS):
                    self.faults.append(f"the canary's change was not observed in {SETTLE_SECONDS:g} s")
            finally:  # the run may end before: the change took as long at the least
                self.delays.append(time.monotonic() - began)
            await asyncio.sleep(0.3)

    async def observed(self, name: str, generation: int, seconds: float) -> Manifest | None:
        """The service as soon as its status speaks of a generation; None: not in time, or it is gone."""
        due = time.monotonic() + seconds
        while time.monotonic() < due:
            live = await self.kube.get(INFERENCE_SERVICE, self.namespace, name)
            if live is None:
                return None
            if ((live.get("status") or {}).get("observedGeneration") or 0) >= generation:
                return live
            await asyncio.sleep(0.02)
        return None

    # --- one case ------------------------------------------------------------------------------------------
    async def play(self, number: int, case: Case) -> None:
        try:
            outcome = await getattr(self, f"_play_{case.target}")(number, case)
        except KubeError as error:
            outcome = self._refused(case, error)
        self.outcomes[f"{case.target} {outcome}"] += 1

    def _refused(self, case: Case, error: KubeError) -> str:
        if not error.invalid:
            return f"{error.status or 'no answer'}"
        if case.target == "service" and not NAMES_FIELD.search(error.message):
            self.faults.append(f"refused without the name of a field: {error.message}; {case}")
        return "refused"

    async def _play_service(self, number: int, case: Case) -> str:
        name = f"case-{number}"
        live = await self.create(name, case.body)
        self.services.append(name)
        if len(self.services) > LIVE_SERVICES:
            await self.kube.call("DELETE", INFERENCE_SERVICE.path(self.namespace, self.services.pop(0)))
        found = await self.observed(name, live["metadata"]["generation"], SETTLE_SECONDS)
        if found is None:
            self.faults.append(f"{name} was not observed in {SETTLE_SECONDS:g} s: {case}")
            return "not observed"
        stalled = next(c for c in found["status"]["conditions"] if c["type"] == "Stalled")
        if stalled["status"] == "True" and not NAMES_FIELD.search(stalled["message"]):
            self.faults.append(f"{name}: the condition names no field: {stalled['reason']}: {stalled['message']}")
        return stalled["reason"]

    async def _play_child(self, number: int, case: Case) -> str:
        kind = BY_NAME[case.kind]
        found = await self._children(kind, case)
        if not found:
            return "no child"
        live = found[case.subject % len(found)]
        if "status" in case.body:
            await self.patch(kind, live["metadata"]["name"], case.body, "status")
        elif number % 20 == 0:
            await self.kube.delete(kind, self.namespace, live["metadata"]["name"], live["metadata"]["uid"])
        else:
            await self.patch(kind, live["metadata"]["name"], case.body)
        return "written"

    async def _children(self, kind: Kind, case: Case) -> list[Manifest]:
        service = self.subjects[case.subject % len(self.subjects)]
        listing = await self.kube.list(kind, self.namespace, labelSelector=f"{contract.LABEL_SERVICE}={service}")
        return listing.items

    async def _play_pod(self, number: int, case: Case) -> str:
        service = self.subjects[case.subject % len(self.subjects)]
        role = (*contract.ENGINE_ROLES, contract.ROUTER)[case.subject % 3]
        labels = {
            contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
            contract.LABEL_SERVICE: service,
            contract.LABEL_ROLE: role,
            **case.body.get("labels", {}),
        }
        meta = {
            "name": f"pod-{number}",
            "labels": {k: v for k, v in labels.items() if v is not None},
            "annotations": {k: v for k, v in case.body.get("annotations", {}).items() if v is not None},
        }
        container = {"name": "engine", "image": "none"}
        spec = {"containers": [container], "nodeSelector": NOWHERE}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await self.kube.create(POD, self.namespace, pod)
        try:
            await self.patch(POD, f"pod-{number}", {"status": case.body["status"]}, "status")
        finally:
            await asyncio.sleep(0.3)
            await self.kube.call("DELETE", POD.path(self.namespace, f"pod-{number}"), body={"gracePeriodSeconds": 0})
        return "written"

    async def _play_annotations(self, _: int, case: Case) -> str:
        service = self.subjects[case.subject % len(self.subjects)]
        await self.patch(INFERENCE_SERVICE, service, {"metadata": {"annotations": case.body}})
        return "written"

    async def _play_status(self, _: int, case: Case) -> str:
        service = self.subjects[case.subject % len(self.subjects)]
        live = await self.patch(INFERENCE_SERVICE, service, {"status": case.body}, "status")
        observed = (live.get("status") or {}).get("observedGeneration") or 0
        if observed < live["metadata"]["generation"]:
            found = await self.observed(service, live["metadata"]["generation"], SETTLE_SECONDS)
            if found is None:
                self.faults.append(f"the status of {service} was not written again: {case}")
        return "written"

    # --- the API server ------------------------------------------------------------------------------------
    async def create(self, name: str, spec: Json) -> Manifest:
        manifest = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.name,
            "metadata": {"name": name},
            "spec": spec,
        }
        return await self.kube.call("POST", INFERENCE_SERVICE.path(self.namespace), body=manifest)

    async def patch(self, kind: Kind, name: str, body: Json, subresource: str | None = None) -> Manifest:
        """As another manager of fields, such as a person with kubectl."""
        path, query = kind.path(self.namespace, name, subresource), {"fieldManager": "fuzz"}
        return await self.kube.call("PATCH", path, query=query, body=body, content_type=_MERGE)

    async def prepare(self) -> None:
        """The services that are edited, and the canary; returns when the operator has seen them all."""
        self.subjects += [f"subject-{number}" for number in range(len(BASES))]
        for name, base in zip((*self.subjects, "canary"), (*BASES, BASES[0]), strict=True):
            await self.create(name, base)
        for name in (*self.subjects, "canary"):
            if not await self.observed(name, 1, START_SECONDS):
                raise cluster.ClusterError(f"the operator did not look at {name} in {START_SECONDS:g} s")
        self.children = {name: await self._children_of(name) for name in self.subjects}

    async def _children_of(self, service: str) -> set[Child]:
        labels = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY},{contract.LABEL_SERVICE}={service}"
        listings = [await self.kube.list(kind, self.namespace, labelSelector=labels) for kind in CHILD_KINDS]
        listed = zip(CHILD_KINDS, listings, strict=True)
        return {(kind.name, live["metadata"]["name"]) for kind, found in listed for live in found.items}

    async def check_repaired(self) -> None:
        """Every subject has the children that it had before anybody edited them. Of one that lost its owner, its labels
        and its managedFields nobody can tell whose it is: it stays as it is, and Stalled names it, or another such."""
        due = time.monotonic() + SETTLE_SECONDS
        for name, expected in self.children.items():
            while (found := await self._children_of(name)) != expected and time.monotonic() < due:
                await asyncio.sleep(0.2)
            if found == expected:
                continue
            service = await self.kube.get(INFERENCE_SERVICE, self.namespace, name) or {}
            missing, more = expected - found, found - expected
            gone = [child for child in missing if not await self._is_of_another(service, *child)]
            if gone or more or not names_conflict(service, missing):
                live = [((await self._live(*child)) or {}).get("metadata") for child in sorted(missing)]
                said = f"Stalled is {stalled_condition(service)}; the missing: {live}"
                self.faults.append(f"the children of {name}: {sorted(missing)} are missing, {sorted(more)} new; {said}")

    async def _is_of_another(self, service: Manifest, kind: str, name: str) -> bool:
        live = await self._live(kind, name)
        return live is not None and owner_uid(live) != service.get("metadata", {}).get("uid")

    async def _live(self, kind: str, name: str) -> Manifest | None:
        return await self.kube.get(BY_NAME[kind], self.namespace, name)

    async def run(self, played: Sequence[Case]) -> None:
        """Play the cases, some at once, while the canary is changed."""
        canary = asyncio.create_task(self.canary())
        numbered = enumerate(played)

        async def work() -> None:
            for number, case in numbered:
                await self.play(number, case)

        workers = [asyncio.create_task(work()) for _ in range(WORKERS)]
        try:
            await first_error(canary, *workers)
        finally:
            for task in (canary, *workers):
                task.cancel()
            await asyncio.gather(canary, *workers, return_exceptions=True)


def stalled_condition(service: Manifest) -> Json:
    conditions = (service.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == "Stalled"), {})


def names_conflict(service: Manifest, missing: Collection[Child]) -> bool:
    """Whether the condition Stalled names all of these children as somebody else's, or at the least as left alone."""
    said = str(stalled_condition(service).get("message"))
    return all(re.search(rf"{kind} {re.escape(name)}(?![\w-])", said) for kind, name in missing)


async def first_error(canary: asyncio.Task[None], *workers: asyncio.Task[None]) -> None:
    """Until all workers have ended; an error of the canary or of a worker is raised at once."""
    left = set(workers)
    while left:
        done, _ = await asyncio.wait({canary, *left}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        left -= done
