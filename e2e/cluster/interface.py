"""The operations of a cluster for the demo and the tests: of the local one, and of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.cluster.settings import ClusterError


@dataclass(frozen=True)
class Target:
    """A port of a Service, written NAMESPACE/SERVICE:PORT."""

    namespace: str
    service: str
    port: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}:{self.port}"


def parse_target(text: str) -> Target:
    path, _, port = text.partition(":")
    namespace, _, service = path.partition("/")
    if not (namespace and service and port) or "/" in service:
        raise ClusterError(f"{text!r} is not NAMESPACE/SERVICE:PORT, for example default/chat:80")
    return Target(namespace, service, port)


class Cluster(Protocol):
    def up(self) -> None:
        """Bring it up until pods run; does nothing where it is up already."""
        ...

    def down(self) -> None:
        """Remove everything but the cache."""
        ...

    def status(self) -> bool:
        """Print its state; whether every part works."""
        ...

    def program(self, name: str) -> tuple[Sequence[str], Mapping[str, str]]:
        """kubectl's or helm's command line and environment that reach this cluster."""
        ...

    def kubeconfig_path(self) -> Path: ...

    def load_image(self, source: str) -> str:
        """Make an image (an archive's path, or buildah:NAME) known to the nodes; the name that pods use."""
        ...

    def add_node(self) -> str:
        """A second node with the images of the first; its name. Does nothing where it is Ready already."""
        ...

    def remove_node(self) -> None:
        """Take it away, and at once what runs there: drain it first. Does nothing where there is none."""
        ...

    def expose(self, target: str, local_port: int = 0) -> str:
        """A Service's port on the machine's loopback; its URL. The same target keeps its port."""
        ...

    def unexpose(self, target: str) -> None: ...

    def stop_component(self, name: str, *, at_once: bool = False) -> None:
        """Take a part of the cluster away, such as kube-apiserver; `at_once` kills it."""
        ...

    def start_component(self, name: str) -> None:
        """Bring a part back, and wait until it works."""
        ...

    def freeze_component(self, name: str) -> None:
        """Make a part hang: it keeps its connections and answers nothing."""
        ...

    def thaw_component(self, name: str) -> None:
        """Let a frozen part go on, and wait until it works."""
        ...

    def audit_log_path(self) -> Path:
        """The API server's record of every write: one JSON event a line, without bodies."""
        ...
