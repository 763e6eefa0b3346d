"""The local cluster: brings its parts up in order, takes them down, and operates them.

Every step does only what is missing, so `up` can be interrupted at any moment and run again. What runs is read from
/proc and from the parts themselves, never from a file that an interruption could leave outdated.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster import agents, binaries, configuration, dns, forward, images, node, runtime, second_node
from e2e.cluster.components import COMPONENTS
from e2e.cluster.interface import parse_target
from e2e.cluster.packages import ensure_system_packages
from e2e.cluster.pki import ensure_certificates
from e2e.cluster.progress import POLL_SECONDS, exclusive, phase, say, wait_for
from e2e.cluster.settings import API_SERVER_PORT, NODE_IP, NODE_NAME, ClusterError, Settings
from e2e.cluster.status import Api, report

UP_OR_DOWN = "up or down"
FORWARDER = "e2e.cluster.forward"
API_FORWARD = "kube-apiserver"
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LocalCluster:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def up(self) -> None:
        _check_root()
        ensure_system_packages()
        with exclusive(self.settings.lock, UP_OR_DOWN):
            programs = binaries.programs(self.settings)
            with phase("node ready to take the parts"):
                self._forget_before_reboot()
                self._write_configuration()
                the_node = node.find(self.settings) or self._new_node(programs)
            self._start_parts(the_node, programs)
            self._wait_until_usable(the_node, programs)
        say(f"up; kubectl works with KUBECONFIG={self.settings.kubeconfig}")

    def down(self) -> None:
        _check_root()
        with exclusive(self.settings.lock, UP_OR_DOWN), phase("down; only the cache remains"):
            second_node.stop(self.settings)
            node.stop(self.settings)
            node.remove_tree(self.settings.state)
            with contextlib.suppress(OSError):  # others may keep their state beside it
                self.settings.state.parent.rmdir()
            runtime.remove_leftovers(self.settings)

    def status(self) -> bool:
        return report(self.settings, self._node_or_none(), self._programs(), self._api())

    def program(self, name: str) -> tuple[Sequence[str], Mapping[str, str]]:
        state = self.settings.state
        own = {f"HELM_{kind}_HOME": f"{state}/helm/{kind.lower()}" for kind in ("CACHE", "CONFIG", "DATA")}
        own |= {"KUBECONFIG": str(self.kubeconfig_path()), "KUBECACHEDIR": f"{state}/kubectl-cache"}
        return [str(self._programs()[name])], {**os.environ, **own}

    def kubeconfig_path(self) -> Path:
        if not self.settings.kubeconfig.exists():
            raise ClusterError("the cluster is not up; run: python -m e2e.cluster up")
        return self.settings.kubeconfig

    def load_image(self, source: str) -> str:
        self._node()
        if node.find(self.settings.second):
            images.load(self.settings.second.containerd_socket, source)
        return images.load(self.settings.containerd_socket, source)

    def add_node(self) -> str:
        _check_root()
        with exclusive(self.settings.lock, UP_OR_DOWN):
            first, api = self._node(), self._api()
            name = self.settings.second.node.name
            if not (node.find(self.settings.second) and api.node_ready(name)):
                second_node.remove(self.settings, self._kubectl)
                second_node.add(self.settings, first, self._programs(), api)
        return name

    def remove_node(self) -> None:
        _check_root()
        with exclusive(self.settings.lock, UP_OR_DOWN):
            if self._node_or_none():
                second_node.remove(self.settings, self._kubectl)

    def expose(self, target: str, local_port: int = 0) -> str:
        wanted = parse_target(target)
        service = self._api().get(f"/api/v1/namespaces/{wanted.namespace}/services/{wanted.service}")
        if service is None:
            raise ClusterError(f"there is no Service {wanted.service} in namespace {wanted.namespace}")
        address = service["spec"].get("clusterIP")
        ports = service_ports(service)
        if not address or address == "None" or wanted.port not in ports:
            raise ClusterError(f"{target}: the Service has address {address} and ports {', '.join(ports)}")
        opened = forward.add(
            self.settings.forward_socket,
            {"name": str(wanted), "local": local_port, "host": address, "port": ports[wanted.port]},
        )
        return f"http://127.0.0.1:{opened}"

    def unexpose(self, target: str) -> None:
        forward.remove(self.settings.forward_socket, str(parse_target(target)))

    def stop_component(self, name: str, *, at_once: bool = False) -> None:
        _check_component(name)
        node.end(node.running(self._node()).get(name, []), at_once=at_once)

    def start_component(self, name: str) -> None:
        _check_component(name)
        self._ensure_component(self._node(), name, self._programs())
        if name == "kube-apiserver":
            self._wait_for_api()

    def freeze_component(self, name: str) -> None:
        _check_component(name)
        node.send(node.running(self._node()).get(name, []), signal.SIGSTOP)

    def thaw_component(self, name: str) -> None:
        _check_component(name)
        node.send(node.running(self._node()).get(name, []), signal.SIGCONT)
        if name == "kube-apiserver":
            self._wait_for_api()

    def audit_log_path(self) -> Path:
        return self.settings.audit_log

    def _new_node(self, programs: Mapping[str, Path]) -> node.Node:
        second_node.stop(self.settings)
        node.stop(self.settings)
        return node.start(self.settings, programs["pause"])

    def _start_parts(self, the_node: node.Node, programs: Mapping[str, Path]) -> None:
        """The API server takes longest, so it begins first; the others wait for it, or it delays them."""
        for name in ("etcd", "kube-apiserver", "containerd"):
            self._ensure_component(the_node, name, programs)
        self._ensure_forwarder(the_node)
        with phase("own images there"):
            agents.ensure_own_images(self.settings, programs)
        with phase("API server ready"):
            self._wait_for_api()
        for name in (*CONTROLLERS, "kubelet", "kube-proxy"):
            self._ensure_component(the_node, name, programs)

    def _wait_until_usable(self, the_node: node.Node, programs: Mapping[str, Path]) -> None:
        api, logs = self._api(), self.settings.logs
        with phase(f"node {NODE_NAME} ready"):
            _wait(f"the node to be ready; see {logs}/kubelet.log", lambda: api.node_ready(NODE_NAME))
        self._ensure_component(the_node, agents.FIREWALL, programs)
        with phase("service accounts there"):
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            _wait(f"service accounts; see {logs}/kube-controller-manager.log", lambda: api.get(account))
        with phase("DNS ready"):
            if not api.deployment_available(dns.NAMESPACE, dns.NAME):
                self._apply_dns()
            what = "CoreDNS to be ready; see: kubectl -n kube-system describe pods"
            _wait(what, lambda: api.deployment_available(dns.NAMESPACE, dns.NAME))

    def _apply_dns(self) -> None:
        manifests = dns.manifests(images.coredns(Path("coredns")).name)
        self._kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=manifests)

    def _kubectl(self, *arguments: str, text: str | None = None) -> None:
        command, environment = self.program("kubectl")
        given = [*command, *arguments]
        done = subprocess.run(given, env=environment, input=text, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr}")

    def _ensure_component(self, the_node: node.Node, name: str, programs: Mapping[str, Path]) -> None:
        agents.ensure_component(self.settings, the_node, name, programs)

    def _ensure_forwarder(self, the_node: node.Node) -> None:
        """In the node's process namespace, so that it ends with the node; its network it changes by itself."""
        control = self.settings.forward_socket
        if not forward.answers(control):
            node.end(node.running(the_node).get(FORWARDER, []))
            kept = str(self.settings.state / "forwards.json")
            command = [sys.executable, "-m", FORWARDER, str(the_node.network), str(control), kept]
            node.launch(self.settings, the_node, "forward", command, network=False, files=False)
            _wait(f"the forwarder; see {self.settings.logs}/forward.log", lambda: forward.answers(control))
        self._write_kubeconfig(self._forward_api())

    def _forward_api(self) -> int:
        control = self.settings.forward_socket
        for known in forward.listed(control):
            if known["name"] == API_FORWARD:
                return known["local"]
        for port in (self.settings.api_port, 0):
            try:
                return forward.add(
                    control, {"name": API_FORWARD, "local": port, "host": NODE_IP, "port": API_SERVER_PORT}
                )
            except ClusterError:
                if port == 0:
                    raise
        raise AssertionError

    def _write_configuration(self) -> None:
        state, pki = self.settings.state, self.settings.pki
        self.settings.logs.mkdir(parents=True, exist_ok=True)
        ensure_certificates(pki, datetime.datetime.now(datetime.timezone.utc))
        (state / "etcd").mkdir(mode=0o700, exist_ok=True)
        agents.write(state / "audit-policy.json", configuration.audit_policy())
        agents.write_files(self.settings, pki)
        for name in CONTROLLERS:
            agents.write_kubeconfig(self.settings, name, pki)

    def _write_kubeconfig(self, port: int) -> None:
        content = agents.kubeconfig(self.settings.pki, "admin", f"https://127.0.0.1:{port}")
        agents.write(self.settings.kubeconfig, content)

    def _forget_before_reboot(self) -> None:
        """Nothing of a cluster survives the machine's restart, and etcd's data may be incomplete."""
        kept, now = self.settings.state / "boot-id", BOOT_ID.read_text()
        if self.settings.state.exists() and (not kept.exists() or kept.read_text() != now):
            second_node.stop(self.settings)
            node.stop(self.settings)
            node.remove_tree(self.settings.state)
        self.settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        agents.write(kept, now)

    def _wait_for_api(self) -> None:
        _wait(f"the API server to be ready; see {self.settings.logs}", self._api().ready)

    def _api(self) -> Api:
        forwards = forward.listed(self.settings.forward_socket)
        port = next((known["local"] for known in forwards if known["name"] == API_FORWARD), self.settings.api_port)
        return Api(port, self.settings.pki)

    def _programs(self) -> Mapping[str, Path]:
        return binaries.programs(self.settings)

    def _node(self) -> node.Node:
        found = self._node_or_none()
        if found is None:
            raise ClusterError("the cluster is not up; run: python -m e2e.cluster up")
        return found

    def _node_or_none(self) -> node.Node | None:
        return node.find(self.settings)


def _wait(what: str, probe: Callable[[], object]) -> None:
    wait_for(what, probe, 60, POLL_SECONDS)


def service_ports(service: Mapping[str, Any]) -> dict[str, int]:
    """A Service's ports, by number and by name."""
    ports = service["spec"].get("ports", [])
    return {key: port["port"] for port in ports for key in (str(port["port"]), port.get("name")) if key}


def _check_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root (namespaces, mounts): run as root, or set CLUSTER=current")


def _check_component(name: str) -> None:
    if name not in COMPONENTS:
        raise ClusterError(f"{name} is not a part of the cluster; the parts are {', '.join(COMPONENTS)}")
