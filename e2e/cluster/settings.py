"""Where the cluster keeps what, and its nodes' addresses. Pure but for reading the environment it is given.

Two clusters can live side by side when PHASEWISE_CLUSTER_NAME and PHASEWISE_STATE differ: every process, file, control
group and port of a cluster follows from these settings.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

NODE_NAME = "phasewise-local"
NODE_IP = "10.200.0.10"
NODE_NETWORK = "10.200.0.0/24"
PODS_CIDR = "10.244.0.0/16"
"""Of all nodes' pods."""
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = str(ipaddress.ip_network(SERVICE_CIDR)[1])
DNS_SERVICE_IP = str(ipaddress.ip_network(SERVICE_CIDR)[10])
API_SERVER_PORT = 6443
DEFAULT_NAME = "phasewise"
DEFAULT_API_PORT = 16443

# The node mounts its own file systems here, so nothing that the node reads may lie below.
HIDDEN_IN_NODE = ("/run", "/proc", "/sys")
LONGEST_SOCKET = 107
"""Bytes of a path, see unix(7)."""


class ClusterError(Exception):
    """Something the user can act on; the message says how."""


@dataclass(frozen=True)
class NodeIdentity:
    """What Kubernetes and the network know a node by."""

    name: str
    ip: str
    pod_cidr: str


FIRST_NODE = NodeIdentity(NODE_NAME, NODE_IP, "10.244.0.0/24")
SECOND_NODE = NodeIdentity(f"{NODE_NAME}-2", "10.200.0.11", "10.244.1.0/24")


@dataclass(frozen=True)
class Settings:
    """Of the cluster and its first node; `second` has those of the second node."""

    name: str
    cache: Path
    state: Path
    api_port: int
    node: NodeIdentity = FIRST_NODE

    @property
    def second(self) -> Settings:
        """A name that no cluster can have, since a dot is refused there."""
        return replace(self, name=f"{self.name}.2", state=self.state / "node-2", node=SECOND_NODE)

    @property
    def marker(self) -> str:
        """The argument by which this cluster's node is found among the machine's processes."""
        return f"--phasewise-node={self.state}"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def forward_socket(self) -> Path:
        return self.state / "forward.sock"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def images_root(self) -> Path:
        """containerd's root: in the cache, so that an image loaded once is there in the next cluster."""
        return self.cache / ("containerd" if self.name == DEFAULT_NAME else f"containerd-{self.name}")

    @property
    def lock(self) -> Path:
        return self.cache / f"{self.name}.lock"


def settings_from(environ: Mapping[str, str], home: Path) -> Settings:
    cache = environ.get("PHASEWISE_CACHE") or Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "phasewise"
    state = environ.get("PHASEWISE_STATE") or Path(environ.get("XDG_STATE_HOME") or home / ".local/state") / "phasewise"
    settings = Settings(
        name=environ.get("PHASEWISE_CLUSTER_NAME") or DEFAULT_NAME,
        cache=Path(cache).absolute(),
        state=Path(state).absolute() / "cluster",
        api_port=_port(environ.get("PHASEWISE_API_PORT") or str(DEFAULT_API_PORT)),
    )
    _check(settings)
    return settings


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ClusterError(f"PHASEWISE_API_PORT is {text!r}: give a port number between 1 and 65535, or leave it out")
    return int(text)


def _check(settings: Settings) -> None:
    if not settings.name.replace("-", "").isalnum():
        raise ClusterError(f"PHASEWISE_CLUSTER_NAME is {settings.name!r}: use letters, digits and '-' only")
    for variable, path in (("PHASEWISE_CACHE", settings.cache), ("PHASEWISE_STATE", settings.state)):
        if any(path.is_relative_to(hidden) for hidden in HIDDEN_IN_NODE):
            raise ClusterError(f"{path} lies where the node mounts its own files: set {variable} to another folder")
    if len(str(settings.second.containerd_socket)) > LONGEST_SOCKET:
        raise ClusterError(f"{settings.state} is too long for a socket's path: set PHASEWISE_STATE to a shorter one")
