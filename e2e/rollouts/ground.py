"""Where the rollouts take place: a service whose engines compute on CPU and are counted by an extended resource.

So a node has as many places as it is given, `gpuBudget` bounds them, and a pod that finds none stays Pending: all as
with GPUs (https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/).
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from e2e import cluster, images, kube, service
from e2e.client import TLS
from e2e.cluster.progress import wait_for
from e2e.load import Load
from e2e.service import ROLLOUTS_NAMESPACE as NAMESPACE
from e2e.service import Service
from phasewise_runtime import contract

SLOT = "phasewise.example/slot"
NAME = "rollout"
SLOTS = 8
"""On the node: more than any budget here, so that one that is exceeded shows."""
ENGINES = f"{contract.LABEL_SERVICE}={NAME},{contract.LABEL_ROLE} in ({','.join(contract.ENGINE_ROLES)})"
"""Selects the engine pods."""
NEXT_TAG = "next"
SETTLE_SECONDS = 900
"""Of one rollout. On two cores an engine beside the load takes a minute or two to start."""


def manifest(replicas: int, budget: int) -> kube.Object:
    """A service of so many replicas in each pool, under a budget."""
    made = service.quickstart(NAME, NAMESPACE)
    spec = made["spec"]
    spec["engine"]["device"] = "cpu"
    for role in contract.ENGINE_ROLES:
        spec[role]["replicas"] = {"min": replicas}
        spec[role]["accelerator"] = {"resource": SLOT}
    spec["maxGeneration"] = "120s"
    spec["scaling"] = {"mode": "Manual", "gpuBudget": budget}
    return made


def rollout_manifest() -> kube.Object:
    """A pod a pool, and a budget for two copies."""
    return manifest(1, 4)


def set_slots(node: str, count: int) -> None:
    """What a device plugin tells the kubelet of a node."""
    change = {"status": {"capacity": {SLOT: str(count)}}}
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(change))

    def allocatable() -> bool:
        return kube.get("node", node)["status"]["allocatable"].get(SLOT) == str(count)

    wait_for(f"{count} slots on node {node}", allocatable, 60)


@dataclass
class Ground:
    """The service under its load, and edits of it."""

    service: Service
    load: Load
    number: int = field(default_factory=lambda: int(time.time()) % 10**6)
    """Different in every edit of every run."""

    def edit(self, **spec: Any) -> None:
        """Fields of the spec, as a JSON merge patch."""
        kube.patch("infsvc", NAME, {"spec": spec}, NAMESPACE)

    def edit_args(self, **args: Any) -> None:
        self.edit(engine={"args": {name.replace("_", "-"): value for name, value in args.items()}})

    def another_cache(self) -> None:
        """A new revision that cannot read the KV cache of the one before: the seed is not known to be neutral."""
        self.number += 1
        self.edit_args(seed=self.number)

    def another_batch(self) -> None:
        """A new revision with the same KV cache."""
        self.number += 1
        self.edit_args(max_num_seqs=16 + self.number % 16)

    def another_name(self) -> str:
        self.number += 1
        name = f"tiny-{self.number}"
        self.edit(model={"name": name})
        return name

    def spec(self) -> kube.Object:
        return kube.get("infsvc", NAME, NAMESPACE)["spec"]

    def put_spec(self, spec: kube.Object) -> None:
        """The whole of it, as `git revert` and an apply do."""
        kube.patch("infsvc", NAME, {"spec": _replacing(self.spec(), spec)}, NAMESPACE)

    def revisions(self) -> dict[str, str]:
        """By role, those that the newest spec asks for; waits until the operator has seen it."""

        def probe() -> dict[str, str] | None:
            live = kube.get("infsvc", NAME, NAMESPACE)
            status = live.get("status", {})
            if status.get("observedGeneration", 0) < live["metadata"]["generation"]:
                return None
            return {role: status[role]["revision"] for role in contract.ENGINE_ROLES if role in status}

        return wait_for("the operator to see the newest spec", probe, 60)

    def settle(self) -> None:
        """Nothing is under way any more, and no pod of an old revision is left."""
        self.service.wait_ready(SETTLE_SECONDS)
        newest = self.revisions()

        def alone() -> bool:
            return all(_revision(p) == newest.get(role_of(p)) for p in engine_pods())

        wait_for("the last pods of old revisions to be gone", alone, 180)

    def wait_for_pods(self, revisions: dict[str, str], *, ready: bool, every: bool = False) -> None:
        """Until a pod of these revisions is there, or `every` role has one, and ready where that is asked."""

        def found() -> bool:
            pods = [p for p in engine_pods() if _revision(p) == revisions.get(role_of(p))]
            roles = {role_of(p) for p in pods if kube.is_ready(p) or not ready}
            return len(roles) >= (len(revisions) if every else 1)

        wait_for("pods of the revision", found, SETTLE_SECONDS)

    def wait_for_stall(self, reason: str) -> str:
        """The message of the condition Stalled, once it has this reason."""

        def probe() -> str:
            status, found, message = self.service.condition("Stalled")
            return message if (status, found) == ("True", reason) else ""

        return wait_for(f"Stalled with reason {reason}", probe, SETTLE_SECONDS)

    def refresh_engines(self) -> None:
        self.number += 1
        value = f"{contract.ANNOTATION_REFRESH}={self.number}"
        cluster.kubectl("-n", NAMESPACE, "annotate", "infsvc", NAME, "--overwrite", value)
        message = "engines that are up to date"
        wait_for(message, lambda: self.service.condition("EnginesUpToDate")[0] == "True", SETTLE_SECONDS)

    def drain(self, node: str) -> None:
        """`kubectl drain`, of these engines only; afterwards the node can be used again."""
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={ENGINES}")
        try:
            cluster.kubectl("drain", node, *flags, f"--timeout={SETTLE_SECONDS}s")
            wait_for("no engine on the node", lambda: node not in map(_node, engine_pods()), 60)
        finally:
            cluster.kubectl("uncordon", node)

    def move_clients(self, name: str) -> None:
        """To another name of the model, as soon as the router lists it; the one of before must be served meanwhile."""

        def listed() -> bool:
            answer = httpx.get(f"{self.load.url}/v1/models", timeout=10, verify=TLS)
            return name in {model["id"] for model in answer.json()["data"]}

        wait_for(f"the model under the name {name}", listed, SETTLE_SECONDS)
        self.load.rename(name)


def retagged(name: str) -> str:
    """One of the images under another tag, as a release has it; the name that pods use."""
    image = images.IMAGES[name]
    other = f"{image.local.rpartition(':')[0]}:{NEXT_TAG}"
    subprocess.run(["buildah", "tag", image.local, other], check=True, capture_output=True)
    return cluster.selected().load_image(f"buildah:{other}")


def _replacing(now: kube.Object, wanted: kube.Object) -> kube.Object:
    """A merge patch that makes `wanted` of `now`, where maps are concerned."""
    patch: kube.Object = dict.fromkeys(key for key in now if key not in wanted)
    for key, value in wanted.items():
        old = now.get(key)
        patch[key] = _replacing(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return patch


def engine_pods() -> list[kube.Object]:
    """Those that are being deleted, too."""
    return kube.find("pods", ENGINES, NAMESPACE)


def role_of(pod: kube.Object) -> str:
    return pod["metadata"]["labels"][contract.LABEL_ROLE]


def _node(pod: kube.Object) -> str:
    return pod["spec"].get("nodeName", "")


def _revision(pod: kube.Object) -> str:
    return pod["metadata"]["labels"].get(contract.LABEL_REVISION, "")
