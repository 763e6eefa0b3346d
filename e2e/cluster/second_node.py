"""The second node, on demand: pods can move to it, and a drain moves them away.

It has namespaces, a containerd, a kubelet, a kube-proxy and a firewall of its own, and no control plane. The free end
of its link is moved into the first node, from where it vanishes by itself when the second node ends. Both nodes report
the whole machine as their capacity.
"""

from __future__ import annotations

import datetime
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import agents, node, runtime
from e2e.cluster.node_init import FREE_END, NODE_LINK
from e2e.cluster.pki import make_node_certificates
from e2e.cluster.progress import POLL_SECONDS, phase, wait_for
from e2e.cluster.settings import FIRST_NODE, SECOND_NODE, ClusterError, Settings
from e2e.cluster.status import Api

Kubectl = Callable[..., None]
LINK_TO_SECOND = "node2"
"""The link's name in the first node."""
BLOBS = "io.containerd.content.v1.content/blobs"
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
DATABASES = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")
"""Of containerd's root: all that images consist of."""
UPPER_FOLDER = re.compile(r"upperdir=[^ ,]*/snapshots/(\d+)/fs")
READY_SECONDS = 60


def add(settings: Settings, first: node.Node, programs: Mapping[str, Path], api: Api) -> None:
    """`settings`: the cluster's, whose second node has no process and no file now."""
    second = settings.second
    with phase(f"node {second.node.name}: namespaces, certificates, the first node's images"):
        make_node_certificates(second.pki, second.node, settings.pki, datetime.datetime.now(datetime.timezone.utc))
        agents.write_files(second, settings.pki)
        the_node = node.start(second, programs["pause"])
        _join(first, the_node)
        _take_over_images(settings, first)
    for name in ("containerd", "kubelet", "kube-proxy"):
        agents.ensure_component(second, the_node, name, programs)
    with phase(f"node {second.node.name} ready"):
        what = f"the node to be ready; see {second.logs}/kubelet.log"
        wait_for(what, lambda: api.node_ready(second.node.name), READY_SECONDS, POLL_SECONDS)
    agents.ensure_component(second, the_node, agents.FIREWALL, programs)


def stop(settings: Settings) -> None:
    """End its processes and remove its files; what the API server knows of it stays."""
    second = settings.second
    node.stop(second)
    node.remove_tree(second.images_root)
    node.remove_tree(second.state)


def remove(settings: Settings, kubectl: Kubectl) -> None:
    """Pods that are still on it end without a grace period, and whatever made them makes others."""
    if not settings.second.state.exists():
        return
    name = settings.second.node.name
    kubectl("delete", "node", name, "--ignore-not-found")
    stop(settings)
    where = ("--all-namespaces", f"--field-selector=spec.nodeName={name}")
    kubectl("delete", "pods", *where, "--force", "--grace-period=0", "--ignore-not-found")


def _join(first: node.Node, second: node.Node) -> None:
    """The first node reaches the second one by that node's own link, and each the other's pods by its address."""
    _ip(second, "link", "set", FREE_END, "netns", str(first.pid), "name", LINK_TO_SECOND)
    _ip(first, "link", "set", LINK_TO_SECOND, "up")
    _ip(first, "route", "add", SECOND_NODE.ip, "dev", LINK_TO_SECOND, "src", FIRST_NODE.ip)
    _ip(first, "route", "add", SECOND_NODE.pod_cidr, "via", SECOND_NODE.ip, "src", FIRST_NODE.ip)
    _ip(second, "route", "add", FIRST_NODE.pod_cidr, "via", FIRST_NODE.ip, "dev", NODE_LINK, "src", SECOND_NODE.ip)


def _ip(the_node: node.Node, *arguments: str) -> None:
    """In the node's network, with processes by the machine's numbers."""
    command = ["nsenter", f"--net={the_node.network}", "--", "ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _take_over_images(settings: Settings, first: node.Node) -> None:
    """A copy of the first node's image store whose files are hard links: gigabytes are there in seconds.

    Layers and blobs are never written to once they are there. The databases are, so they are copied, together with the
    rest while their containerd stands still. What running containers write is left out.
    """
    source, target = settings.images_root, settings.second.images_root
    with _standing_still(first):
        running = upper_folders(Path(f"/proc/{first.pid}/mountinfo").read_text())
        clone(source, target, running)
    runtime.forget_containers(target)


@contextmanager
def _standing_still(first: node.Node) -> Generator[None]:
    containerd = node.running(first).get("containerd", [])
    node.send(containerd, signal.SIGSTOP)
    try:
        yield
    finally:
        node.send(containerd, signal.SIGCONT)


def upper_folders(mountinfo: str) -> set[str]:
    """The snapshots, by number, that running containers write to. Pure."""
    return set(UPPER_FOLDER.findall(mountinfo))


def clone(source: Path, target: Path, left_out: set[str]) -> None:
    for folder in (BLOBS, SNAPSHOTS):
        (target / folder).mkdir(parents=True)
    snapshots = [path for path in (source / SNAPSHOTS).iterdir() if path.name not in left_out]
    for paths, folder in (((source / BLOBS).iterdir(), BLOBS), (snapshots, SNAPSHOTS)):
        subprocess.run(["cp", "-al", *map(str, paths), str(target / folder)], check=True)
    for database in DATABASES:
        (target / database).parent.mkdir(exist_ok=True)
        shutil.copy(source / database, target / database)
