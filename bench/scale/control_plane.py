"""The control plane of the scale tests: that of e2e.cluster, with kwok's nodes and pods instead of kubelet and pods.

All of it runs in one network namespace without uplink. There every address of a pod is local, so that one server
(pod_server.py) answers for all pods.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml
from e2e import cluster
from e2e.cluster import agents, binaries, configuration, node
from e2e.cluster.components import command_lines
from e2e.cluster.local import LocalCluster
from e2e.cluster.progress import POLL_SECONDS, phase, wait_for
from e2e.cluster.settings import NODE_IP, Settings, settings_from
from e2e.deploy import NAMESPACE, OPERATOR, RELEASE
from e2e.images import ROOT

HERE = Path(__file__).parent
KWOK = "sigs.k8s.io/kwok/cmd/kwok"
POD_SERVER = "bench.scale.pod_server"
POD_CIDR = "10.128.0.0/16"
NODES = 20
CAPACITY = {"cpu": "2k", "memory": "20Ti", "pods": "2k", "nvidia.com/gpu": "2k"}
"""Of each node: more than the largest scenario needs."""
INSTALLED = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "CustomResourceDefinition")
"""What is taken of the chart: the operator itself runs as a process."""
MORE_ARGUMENTS = {
    # Its clients are not what is measured. And kwok's nodes send no heartbeat.
    "kube-controller-manager": (
        *("--kube-api-qps=1000", "--kube-api-burst=2000"),
        *("--node-monitor-grace-period=24h", "--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20"),
    ),
    "kube-scheduler": ("--kube-api-qps=1000", "--kube-api-burst=2000"),
}


def selected() -> ScaleCluster:
    """Beside the cluster of the tests, with a name and a folder of its own."""
    environ = {"PHASEWISE_CLUSTER_NAME": "scale", **os.environ}
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "phasewise-scale"
    environ.setdefault("PHASEWISE_STATE", str(state))
    return ScaleCluster(settings_from(environ, Path.home()))


class ScaleCluster(LocalCluster):
    def network(self) -> Path:
        """The network namespace in which the API server and the pods answer."""
        return self._node().network

    def operator_environment(self) -> dict[str, str]:
        """What the chart sets in the operator's container."""
        deployment = next(m for m in self._chart() if m["kind"] == "Deployment")
        entries = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        return {entry["name"]: entry.get("value") or "" for entry in entries if "valueFrom" not in entry}

    def operator_kubeconfig(self) -> Path:
        """With a token of the operator's ServiceAccount: it may do what the chart allows, and is throttled as any."""
        where = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{OPERATOR}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400},
        }
        answer = json.loads(self.kubectl("create", f"--raw={where}", "-f", "-", text=json.dumps(request)))
        content = json.loads(agents.kubeconfig(self.settings.pki, "admin", configuration.api_server_inside()))
        content["users"][0]["user"] = {"token": answer["status"]["token"]}
        path = self.settings.state / "operator.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self._run("kubectl", arguments, text)

    def _run(self, program: str, arguments: tuple[str, ...], text: str | None = None) -> str:
        command, environment = self.program(program)
        done = subprocess.run(
            [*command, *arguments], env=environment, input=text, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise cluster.ClusterError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    # --- the steps of `up` that differ from those of e2e's cluster -------------------------------------------
    def _write_configuration(self) -> None:
        super()._write_configuration()
        state = self.settings.state
        (state / "audit-policy.json").write_text(json.dumps(audit_policy()))
        agents.write_kubeconfig(self.settings, "kwok", self.settings.pki, user="admin")

    def _start_parts(self, the_node: node.Node, programs: Mapping[str, Path]) -> None:
        commands = command_lines(self.settings, programs, containerd="")
        route = the_node.inside(["ip", "route", "replace", "local", POD_CIDR, "dev", "lo"])
        subprocess.run(route, check=True)
        for name in ("etcd", "kube-apiserver"):
            self._ensure(the_node, name, commands[name])
        self._ensure_forwarder(the_node)
        with phase("API server ready"):
            self._wait_for_api()
        for name, more in MORE_ARGUMENTS.items():
            self._ensure(the_node, name, [*commands[name], *more])
        self._ensure(the_node, "kwok", self._kwok_command())
        self._ensure(the_node, POD_SERVER, [sys.executable, "-m", POD_SERVER])

    def _ensure(self, the_node: node.Node, name: str, command: list[str]) -> None:
        if name not in node.running(the_node):
            node.launch(self.settings, the_node, name, command, network=True, files=True)

    def _kwok_command(self) -> list[str]:
        flags = [f"--kubeconfig={self.settings.state}/kwok.kubeconfig", f"--config={HERE}/kwok-stages.yaml"]
        more = [
            "--manage-all-nodes=true",
            f"--cidr={POD_CIDR}",
            f"--node-ip={NODE_IP}",
            "--node-lease-duration-seconds=0",
        ]
        return [str(kwok(self.settings)), *flags, *more]

    def _wait_until_usable(self, the_node: node.Node, programs: Mapping[str, Path]) -> None:
        """Its nodes are kwok's, and no firewall is needed where no pod speaks."""
        del the_node, programs
        nodes = {"apiVersion": "v1", "kind": "List", "items": [node_manifest(n) for n in range(NODES)]}
        self.kubectl("apply", "--server-side", "-f", "-", text=json.dumps(nodes))
        with phase("nodes and service accounts there"):
            api = self._api()
            logs = self.settings.logs
            last = node_manifest(NODES - 1)["metadata"]["name"]
            wait_for(f"node {last}; see {logs}/kwok.log", lambda: api.node_ready(last), 60, POLL_SECONDS)
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            wait_for(f"service accounts; see {logs}", lambda: api.get(account), 60, POLL_SECONDS)
        self._install_chart()

    def _install_chart(self) -> None:
        """Its CRDs, and the operator's identity and rights."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.kubectl("apply", "--server-side", "-f", "-", text=json.dumps(namespace))
        rest = [m for m in self._chart() if m["kind"] in INSTALLED]
        for manifest in rest:
            if manifest["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
                manifest["metadata"].setdefault("namespace", NAMESPACE)
        listed = {"apiVersion": "v1", "kind": "List", "items": rest}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(listed))
        for crd in (m for m in rest if m["kind"] == "CustomResourceDefinition"):
            self.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}", "--timeout=60s")

    def _chart(self) -> list[dict[str, object]]:
        chart = str(ROOT / "charts" / "phasewise")
        text = self._run("helm", ("template", RELEASE, chart, f"--namespace={NAMESPACE}"))
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def audit_policy() -> dict[str, object]:
    """All that the operator asks for and writes, without bodies; a watch counts when it ends."""
    user = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [{"level": "Metadata", "users": [user]}, {"level": "None"}],
    }


def node_manifest(number: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"kwok-{number}", "labels": {"kubernetes.io/hostname": f"kwok-{number}"}},
        "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
    }


def kwok(settings: Settings) -> Path:
    """kwok's program, built once into the cache."""
    source = HERE / "go"
    go_mod = (source / "go.mod").read_text()
    what = "kwok from source, once, some 4 CPU-minutes"
    module = binaries.Module(what, source, (KWOK,), "-s -w", binaries.required(go_mod, r"^go (\S+)"))
    return binaries.built(settings, module) / "kwok"
