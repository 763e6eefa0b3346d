"""containerd: its start, its images' names, and the healing of its root, which outlives the cluster.

The root lies in the cache so that images stay. What pods left in it (containers, their snapshots) is removed by a
containerd that runs only for that, without the CRI plugin, which would take the leftovers for living pods.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import configuration, node
from e2e.cluster.packages import program
from e2e.cluster.progress import POLL_SECONDS, phase, say, wait_for
from e2e.cluster.settings import ClusterError, Settings

NAMESPACE = "k8s.io"
CRI_STATE = "io.containerd.grpc.v1.cri"
START_SECONDS = 20.0
# One runs beside each living pod, and pods outlive a restart of containerd.
SHIM = "containerd-shim-runc-v2"


def ctr(socket: Path, *arguments: str, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [require("ctr"), f"--address={socket}", f"--namespace={NAMESPACE}", *arguments]
    return subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)


def require(name: str) -> str:
    found = program(name)
    if found is None:
        raise ClusterError(f"{name} is missing; run: python -m e2e.cluster up")
    return found


def answers(socket: Path) -> bool:
    """Whether its image store works: with a damaged root it runs, and refuses every question about images."""
    return socket.exists() and ctr(socket, "images", "list", "--quiet").returncode == 0


def ensure_running(settings: Settings, the_node: node.Node, command: Sequence[str]) -> None:
    if answers(settings.containerd_socket):
        return
    processes = node.running(the_node)
    node.end(processes.get("containerd", []))
    if SHIM not in processes:
        remove_leftovers(settings)
    if not _starts(settings, the_node, command):
        say("the image store is damaged: emptying it; images are loaded again when they are needed")
        node.end(node.running(the_node).get("containerd", []), at_once=True)
        node.remove_tree(settings.images_root)
        if not _starts(settings, the_node, command):
            raise ClusterError(f"containerd does not start; see {settings.logs}/containerd.log")


def _starts(settings: Settings, the_node: node.Node, command: Sequence[str]) -> bool:
    settings.images_root.mkdir(parents=True, exist_ok=True)
    settings.containerd_socket.unlink(missing_ok=True)
    node.launch(settings, the_node, "containerd", command, network=True, files=True)
    try:
        wait_for("an answer of containerd", lambda: answers(settings.containerd_socket), START_SECONDS, POLL_SECONDS)
    except ClusterError:
        return False
    return True


def remove_leftovers(settings: Settings) -> None:
    """Remove what pods of an earlier cluster left in the root; keep the images."""
    states = [settings.images_root / CRI_STATE / kind for kind in ("containers", "sandboxes")]
    if not any(state.is_dir() and any(state.iterdir()) for state in states):
        return
    with phase("containers of the last cluster removed"):
        try:
            forget_containers(settings.images_root)
        except ClusterError:
            say("the image store is damaged: emptying it; images are loaded again when they are needed")
            node.remove_tree(settings.images_root)
        for state in states:
            shutil.rmtree(state, ignore_errors=True)


def forget_containers(root: Path) -> None:
    """Of a root that no containerd uses now."""
    with tempfile.TemporaryDirectory() as temporary, _without_pods(root, Path(temporary)) as socket:
        if containers := ctr(socket, "containers", "list", "--quiet").stdout.split():
            ctr(socket, "containers", "delete", *containers)


@contextmanager
def _without_pods(root: Path, temporary: Path) -> Generator[Path]:
    """The socket of a containerd without the CRI plugin."""
    socket, configured = temporary / "containerd.sock", temporary / "containerd.toml"
    content = configuration.containerd(root, temporary / "run", socket, temporary)
    content = content.replace("disabled_plugins = [", 'disabled_plugins = ["io.containerd.grpc.v1.cri", ', 1)
    configured.write_text(content)
    unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private", "--"]
    command = [*unshared, require("containerd"), f"--config={configured}", "--log-level=error"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("an answer of containerd", lambda: answers(socket), START_SECONDS, POLL_SECONDS)
        yield socket
    finally:
        running.kill()
        running.wait()
