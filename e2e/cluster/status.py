"""What `status` prints: each part with its version and whether it runs, the node, the forwards."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster import forwarding, node, runtime
from e2e.cluster.api import Api
from e2e.cluster.components import COMPONENTS
from e2e.cluster.settings import NODE_NAME, ClusterError, Settings

VERSION_ARGUMENTS = {"coredns": ["-version"], "kubectl": ["version", "--client"], "helm": ["version", "--short"]}
CLIENTS = ("coredns", "kubectl", "helm")


def report(settings: Settings, the_node: node.Node | None, programs: Mapping[str, Path], api: Api) -> bool:
    """Print it; whether all is well."""
    running = node.running(the_node) if the_node else {}
    for name in COMPONENTS:
        state = "running" if name in running else "not running"
        print(f"{name:24} {state:12} {version(name, programs)}")
    for name in CLIENTS:
        print(f"{name:24} {'':12} {version(name, programs)}")
    ready = api.node_ready(NODE_NAME)
    print(f"{'node ' + NODE_NAME:24} {'ready' if ready else 'not ready'}")
    if the_node and forwarding.answers(settings.forward_socket):
        for forward in forwarding.listed(settings.forward_socket):
            print(f"127.0.0.1:{forward['local']:<14} forwards to {forward['name']}")
    return ready and all(name in running for name in COMPONENTS)


def version(name: str, programs: Mapping[str, Path]) -> str:
    """What the program itself says, its first line."""
    try:
        program = str(programs[name]) if name in programs else runtime.require(name)
    except ClusterError:
        return "not installed"
    arguments = VERSION_ARGUMENTS.get(name, ["--version"])
    said = subprocess.run([program, *arguments], capture_output=True, text=True, check=False).stdout
    return said.strip().partition("\n")[0]
