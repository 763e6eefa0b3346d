"""What each node runs (containerd, kubelet, kube-proxy, kube-router): their files, start and images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from e2e.cluster import configuration, images, node, runtime
from e2e.cluster.components import command_lines
from e2e.cluster.settings import Settings

FIREWALL = "kube-router"
"""Ends at once where its node is not known yet."""


def write_files(settings: Settings, cluster_pki: Path) -> None:
    """The node's own certificates are there already, in `settings.pki`."""
    state = settings.state
    (state / "cni").mkdir(exist_ok=True)
    write(state / "cni" / "10-pods.conflist", configuration.cni(settings.node))
    write(state / "kubelet.json", configuration.kubelet(settings))
    write(state / "kube-proxy.json", configuration.kube_proxy(settings))
    run, socket = Path("/run/containerd"), settings.containerd_socket
    write(state / "containerd.toml", configuration.containerd(settings.images_root, run, socket, state / "cni"))
    users = {"kubelet": settings.pki, "kube-proxy": cluster_pki}
    for name, pki in users.items():
        write_kubeconfig(settings, name, pki)
    write_kubeconfig(settings, FIREWALL, cluster_pki, user="admin")


def write_kubeconfig(settings: Settings, name: str, pki: Path, user: str | None = None) -> None:
    """For a part that runs inside the cluster's nodes, as `user`: the part's own name if left out."""
    content = kubeconfig(pki, user or name, configuration.api_server_inside())
    write(settings.state / f"{name}.kubeconfig", content)


def kubeconfig(pki: Path, user: str, server: str) -> str:
    files = (pki / file for file in ("ca.crt", f"{user}.crt", f"{user}.key"))
    return configuration.kubeconfig(server, *(file.read_bytes() for file in files))


def write(path: Path, content: str) -> None:
    """Completely or not at all, and readable by the owner only: some files hold keys."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_text(content)
    temporary.replace(path)


def ensure_component(settings: Settings, the_node: node.Node, name: str, programs: Mapping[str, Path]) -> None:
    """Start a part on the node, unless it runs there."""
    command = command_lines(settings, programs, runtime.require("containerd"))[name]
    if name == "containerd":
        runtime.ensure_running(settings, the_node, command)
    elif name not in node.running(the_node):
        node.launch(settings, the_node, name, command, network=True, files=True)


def ensure_own_images(settings: Settings, programs: Mapping[str, Path]) -> None:
    """What the cluster itself and its tests run, beside the images that ship."""
    busybox = Path(runtime.require("busybox"))
    recipes = [images.pause(programs["pause"]), images.coredns(programs["coredns"].resolve())]
    for recipe in [*recipes, images.busybox(busybox, images.busybox_applets(busybox))]:
        images.ensure_made(settings.containerd_socket, recipe)
