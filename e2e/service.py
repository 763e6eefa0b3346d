"""An InferenceService of the tests, the soak or a benchmark: its manifest, its address, its pools and their sizes."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import yaml

from e2e import client, cluster, kube
from e2e.cluster.progress import wait_for
from e2e.images import ROOT
from phasewise_operator.kinds import CHILD_KINDS
from phasewise_runtime import contract

NAMESPACE = "e2e"
"""Of the services that the tests make."""
CHAT_NAMESPACE = "e2e-chat"
"""Of the service `chat` only: what the operator writes about others, it writes elsewhere."""
REAPPLY_NAMESPACE = "e2e-reapply"
"""Of the examples, where no pod starts."""
ROLLOUTS_NAMESPACE = "e2e-rollouts"
NAMESPACES = (NAMESPACE, CHAT_NAMESPACE, ROLLOUTS_NAMESPACE, REAPPLY_NAMESPACE)
SCALED_MAX_GENERATION_SECONDS = 40
MADE_OF_CHILDREN = {"ReplicaSet": "replicasets.apps", "Pod": "pods", "EndpointSlice": "endpointslices.discovery.k8s.io"}
"""What Kubernetes makes of the operator's children."""
CHILDREN = ",".join((*(f"{k.plural}.{k.group}".rstrip(".") for k in CHILD_KINDS), *MADE_OF_CHILDREN.values()))


def example(name: str, namespace: str) -> kube.Object:
    """The manifest of examples/quickstart.yaml under another name: tests and users run the same."""
    manifest = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    manifest["metadata"] = {"name": name, "namespace": namespace}
    return manifest


def quickstart(name: str, namespace: str) -> kube.Object:
    """The example for tests that are not about scaling: pools of fixed size, with a CPU core a pod to start sooner."""
    manifest = example(name, namespace)
    for role in contract.ENGINE_ROLES:
        manifest["spec"][role]["replicas"] = {"min": 1}
        manifest["spec"][role]["resources"]["limits"]["cpu"] = 1
    return manifest


def chat_manifest() -> kube.Object:
    """Two routers, two prefill pods, one decode pod: a router and a prefill pod may go, and requests are answered."""
    manifest = quickstart("chat", CHAT_NAMESPACE)
    manifest["spec"]["router"]["replicas"] = 2
    manifest["spec"]["prefill"]["replicas"] = {"min": 2}
    manifest["spec"]["maxGeneration"] = "60s"
    return manifest


def scaled_manifest() -> kube.Object:
    """Pools of one to two pods."""
    manifest = example("scaled", NAMESPACE)
    manifest["spec"]["maxGeneration"] = f"{SCALED_MAX_GENERATION_SECONDS}s"
    return manifest


def make_namespace(name: str) -> None:
    cluster.kubectl("apply", "-f", "-", text=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")


def apply(manifest: kube.Object) -> None:
    """Create or change it; its namespace is made where it is missing."""
    make_namespace(manifest["metadata"]["namespace"])
    kube.apply(yaml.safe_dump(manifest), manifest["metadata"]["namespace"])


@dataclass(frozen=True)
class Service:
    name: str
    namespace: str
    model: str
    """As clients name it."""
    url: str

    @classmethod
    def when_ready(cls, manifest: kube.Object, seconds: float = 900) -> Service:
        """The service of a manifest that was applied, once it is Ready and can be reached."""
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        kube.wait_ready(name, namespace, seconds)
        url = cluster.selected().expose(f"{namespace}/{name}:80")
        return cls(name, namespace, manifest["spec"]["model"]["name"], url)

    def expose(self) -> None:
        """Make the URL lead to the Service again where that was made again, with another address."""
        cluster.selected().expose(f"{self.namespace}/{self.name}:80")

    def expose_engine(self) -> str:
        """URL of the decode engines, past the router."""
        name = f"{self.name}-reference"
        manifest = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "selector": {contract.LABEL_SERVICE: self.name, contract.LABEL_ROLE: contract.DECODE},
                "ports": [{"port": contract.ENGINE_PORT}],
            },
        }
        kube.apply(yaml.safe_dump(manifest), self.namespace)
        url = cluster.selected().expose(f"{self.namespace}/{name}:{contract.ENGINE_PORT}")
        wait_for("an address that leads to the engine", lambda: client.answers(f"{url}/health"))
        return url

    def wait_ready(self, seconds: float = 400) -> kube.Object:
        return kube.wait_ready(self.name, self.namespace, seconds)

    def delete(self) -> None:
        """Delete it, and see that nothing of it is left."""
        cluster.kubectl("-n", self.namespace, "delete", "infsvc", self.name, "--ignore-not-found", "--timeout=180s")
        selector = f"{contract.LABEL_SERVICE}={self.name}"
        wait_for("no child left", lambda: not kube.find(CHILDREN, selector, self.namespace), 120)

    def condition(self, kind: str) -> tuple[str, str, str]:
        return kube.condition(kube.get("infsvc", self.name, self.namespace), kind)

    def deployment(self, role: str) -> kube.Object:
        return kube.deployment(self.name, role, self.namespace)

    def pods(self, role: str) -> list[kube.Object]:
        return kube.pods(self.name, role, self.namespace)

    def ready_pods(self, role: str) -> int:
        return sum(map(kube.is_ready, self.pods(role)))

    def replicas(self, role: str) -> int:
        return self.deployment(role)["spec"]["replicas"]

    def set_scaling(self, **fields: str) -> None:
        """Change fields of spec.scaling, named as in the spec."""
        kube.patch("infsvc", self.name, {"spec": {"scaling": fields}}, self.namespace)

    def scale(self, role: str, replicas: int) -> None:
        """As an external autoscaler does it; followed in scaling.mode External only."""
        cluster.kubectl("-n", self.namespace, "scale", f"poolscaler/{self.name}-{role}", f"--replicas={replicas}")

    @contextmanager
    def replicas_seen(self, role: str) -> Generator[list[int]]:
        """Every number of replicas that a pool's Deployment is given until the block ends, in order."""
        seen: list[int] = []
        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(0.5):
                if seen[-1:] != [now := self.replicas(role)]:
                    seen.append(now)

        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(follow)
            try:
                yield seen
            finally:
                stop.set()
        following.result()
