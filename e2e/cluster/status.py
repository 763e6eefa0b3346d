"""How the cluster is: questions to its own API server over the machine's loopback, and what `status` prints."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import forward, node, runtime
from e2e.cluster.components import COMPONENTS
from e2e.cluster.settings import ClusterError, Settings

VERSION_ARGUMENTS = {"coredns": ["-version"], "kubectl": ["version", "--client"], "helm": ["version", "--short"]}
CLIENTS = ("coredns", "kubectl", "helm")
SECONDS = 5.0


@dataclass(frozen=True)
class Api:
    port: int
    pki: Path

    def get(self, path: str) -> Any:
        """The answer, from JSON; None where there is none, whatever the reason."""
        try:
            status, body = self._request(path)
            return json.loads(body) if status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None

    def ready(self) -> bool:
        try:
            return self._request("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def node_ready(self, name: str) -> bool:
        return condition(self.get(f"/api/v1/nodes/{name}"), "Ready")

    def deployment_available(self, namespace: str, name: str) -> bool:
        deployment = self.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
        return condition(deployment, "Available")

    def _request(self, path: str) -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=context)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def condition(thing: Any, kind: str) -> bool:
    """Whether an object's status has a condition of this kind that is true."""
    conditions = ((thing or {}).get("status") or {}).get("conditions") or []
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)


def report(settings: Settings, the_node: node.Node | None, programs: Mapping[str, Path], api: Api) -> bool:
    """Print it; whether every part works."""
    running = node.running(the_node) if the_node else {}
    for name in COMPONENTS:
        state = "running" if name in running else "not running"
        print(f"{name:24} {state:12} {version(name, programs)}")
    for name in CLIENTS:
        print(f"{name:24} {'':12} {version(name, programs)}")
    nodes = [settings.node.name, *([settings.second.node.name] if node.find(settings.second) else [])]
    ready = {name: api.node_ready(name) for name in nodes}
    for name, is_ready in ready.items():
        print(f"{'node ' + name:24} {'ready' if is_ready else 'not ready'}")
    if the_node and forward.answers(settings.forward_socket):
        for opened in forward.listed(settings.forward_socket):
            print(f"127.0.0.1:{opened['local']:<14} forwards to {opened['name']}")
    return all(ready.values()) and all(name in running for name in COMPONENTS)


def version(name: str, programs: Mapping[str, Path]) -> str:
    """The first line of the program's own answer."""
    try:
        program = str(programs[name]) if name in programs else runtime.require(name)
    except ClusterError:
        return "not installed"
    arguments = VERSION_ARGUMENTS.get(name, ["--version"])
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().partition("\n")[0]
