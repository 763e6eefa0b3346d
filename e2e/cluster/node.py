"""The node: namespaces held by one process, found again in /proc, so that no lost file can orphan it.

Every process of the cluster lives in the node's process namespace. Ending its first process ends them all, and takes
the mounts and the network with it; what then remains is the control groups and the state folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.node_init import SHADOWED
from e2e.cluster.packages import SYSTEM_PATH
from e2e.cluster.progress import POLL_SECONDS, wait_for
from e2e.cluster.settings import ClusterError, Settings

REPOSITORY = Path(__file__).parents[2]
CGROUPS = Path("/sys/fs/cgroup")
STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Node:
    """The node's first process, as the machine numbers it."""

    pid: int

    def inside(self, command: Sequence[str], *, network: bool = True, files: bool = True) -> list[str]:
        """The command line that runs a command in the node."""
        namespaces = ["--pid", *(["--net"] if network else []), *(["--mount"] if files else [])]
        return ["nsenter", f"--target={self.pid}", *namespaces, "--", *command]

    @property
    def network(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")


def environment(settings: Settings) -> dict[str, str]:
    """Of the cluster's processes: nothing of the user's, such as a proxy that would lead them out of the node."""
    path = os.environ.get("PATH", "")
    return {"PATH": f"{path}:{SYSTEM_PATH}", "HOME": str(settings.state), "PYTHONPATH": str(REPOSITORY)}


def find(settings: Settings) -> Node | None:
    """The node, when its namespaces are set up."""
    return next((Node(pid) for pid, command in _marked(settings) if command[0] == "pause"), None)


def start(settings: Settings, pause: Path) -> Node:
    _prepare_cgroups(settings)
    settings.logs.mkdir(parents=True, exist_ok=True)
    keep = [str(path) for path in (settings.state, settings.cache) if any(path.is_relative_to(s) for s in SHADOWED)]
    init = [sys.executable, "-m", "e2e.cluster.node_init", str(pause), settings.marker, settings.node.ip, *keep]
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--propagation=private", "--"]
    log = settings.logs / "node.log"
    log.touch()  # the shell that opens it does so some time after we go on
    _detached([*namespaces, *init], settings, log)

    def is_set_up() -> bool:
        if log.stat().st_size and not list(_marked(settings)):
            raise ClusterError(f"the node's namespaces could not be made:\n{log.read_text()[-2000:]}")
        return find(settings) is not None

    wait_for(f"the node's namespaces; see {log}", is_set_up, 20, POLL_SECONDS)
    found = find(settings)
    if found is None:
        raise ClusterError(f"the node ended at once; see {log}")
    return found


def stop(settings: Settings) -> None:
    """End every process of the node, also of one that was interrupted while it was being made."""
    for pid, _ in _marked(settings):
        _kill(pid)
    ended = f"the node to end; see: ps -ef | grep {settings.state}"
    wait_for(ended, lambda: not list(_marked(settings)), 60, POLL_SECONDS)
    _remove_cgroups(settings)


def launch(settings: Settings, node: Node, name: str, command: Sequence[str], *, network: bool, files: bool) -> None:
    """Start a process of the node: the shell that starts it ends, and the node's first process adopts it."""
    _detached(command, settings, settings.logs / f"{name}.log", node.inside([], network=network, files=files))


def _detached(command: Sequence[str], settings: Settings, log: Path, inside: Sequence[str] = ()) -> None:
    shell = ["sh", "-c", 'setsid "$@" </dev/null >>"$0" 2>&1 &', str(log), *command]
    subprocess.run([*inside, *shell], env=environment(settings), cwd="/", check=True)


def running(node: Node) -> dict[str, list[int]]:
    """The node's own processes (pods have namespaces of theirs) by program, each as the machine numbers it."""
    found: dict[str, list[int]] = {}
    own = Path(f"/proc/{node.pid}/ns/pid").readlink()
    for pid, command in _processes():
        try:
            inside = Path(f"/proc/{pid}/ns/pid").readlink() == own
        except OSError:
            continue
        if inside:
            found.setdefault(_name(command), []).append(pid)
    return found


def _name(command: Sequence[str]) -> str:
    """A program's file name, or the module's that Python runs."""
    return command[2] if command[1:2] == ["-m"] and len(command) > 2 else Path(command[0]).name


def send(pids: Sequence[int], number: int) -> None:
    """A signal, such as SIGSTOP: a frozen process keeps its connections and answers nothing."""
    for pid in pids:
        _kill(pid, number)


def end(pids: Sequence[int], *, at_once: bool = False) -> None:
    """End processes: SIGTERM first, SIGKILL after a while."""
    for pid in pids:
        _kill(pid, signal.SIGKILL if at_once else signal.SIGTERM)
    try:
        wait_for("processes to end", lambda: not any(map(_alive, pids)), STOP_SECONDS, POLL_SECONDS)
    except ClusterError:
        for pid in pids:
            _kill(pid)
        wait_for(f"processes {list(pids)} to end", lambda: not any(map(_alive, pids)), STOP_SECONDS, POLL_SECONDS)


def remove_tree(folder: Path) -> None:
    """Remove a folder, unless something is mounted in it: then it is not only ours."""
    if not folder.exists():
        return
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if inside := [path for path in mounted if Path(path).is_relative_to(folder)]:
        raise ClusterError(f"{inside[0]} is mounted: unmount it, then run this command again")
    shutil.rmtree(folder)


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            continue
        if command[0]:
            yield int(entry.name), command


def _marked(settings: Settings) -> Iterator[tuple[int, list[str]]]:
    """The node's first process, in the making or made, and the one outside that waits for it."""
    for pid, command in _processes():
        if settings.marker in command[1:]:
            yield pid, command


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def cgroup_parents(mountinfo: str) -> Mapping[Path, bool]:
    """Where control groups are mounted, and whether it is version 2 that manages resources there. Pure."""
    found: dict[Path, bool] = {}
    for line in mountinfo.splitlines():
        fields, _, source = line.partition(" - ")
        path, kind = Path(fields.split()[4]), source.split()[0]
        if kind in ("cgroup", "cgroup2") and path.is_relative_to(CGROUPS):
            found[path] = kind == "cgroup2" and path == CGROUPS
    return found


def _prepare_cgroups(settings: Settings) -> None:
    """A group of the cluster's own in every hierarchy; the kubelet makes the pods' groups below it."""
    for parent, unified in cgroup_parents(Path("/proc/self/mountinfo").read_text()).items():
        group = parent / settings.name
        group.mkdir(exist_ok=True)
        if unified:
            controllers = " ".join(f"+{name}" for name in (parent / "cgroup.controllers").read_text().split())
            for folder in (parent, group):
                (folder / "cgroup.subtree_control").write_text(controllers)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not unified and (group / file).exists() and not (group / file).read_text().strip():
                (group / file).write_text((parent / file).read_text())


def _remove_cgroups(settings: Settings) -> None:
    groups = [parent / settings.name for parent in cgroup_parents(Path("/proc/self/mountinfo").read_text())]

    def removed() -> bool:
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        return not any(group.exists() for group in groups)

    wait_for(f"the control groups named {settings.name} to hold no process", removed, 20, POLL_SECONDS)
