"""The system packages that the cluster and the image builds need, installed in this one place."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.progress import phase, say
from e2e.cluster.settings import ClusterError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Package:
    """A Debian package and the file or program that shows it is there (however it was installed)."""

    name: str
    shown_by: str


PACKAGES = (
    Package("containerd", "containerd"),
    Package("runc", "runc"),
    Package("containernetworking-plugins", "/usr/lib/cni/bridge"),
    Package("nftables", "nft"),
    Package("iptables", "iptables"),
    Package("ipset", "ipset"),
    Package("conntrack", "conntrack"),
    Package("iproute2", "ip"),
    Package("busybox-static", "busybox"),
    Package("libnuma1", "/usr/lib/*-linux-gnu/libnuma.so.1"),
    Package("buildah", "buildah"),
    Package("mmdebstrap", "mmdebstrap"),
    Package("uidmap", "newuidmap"),
)


def program(name: str) -> str | None:
    """A system program's path; sbin counts, which an ordinary user's PATH leaves out."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":" + SYSTEM_PATH)


def is_there(package: Package) -> bool:
    if not package.shown_by.startswith("/"):
        return program(package.shown_by) is not None
    return any(Path("/").glob(package.shown_by.lstrip("/")))


def missing_packages(present: Callable[[Package], bool] = is_there) -> list[str]:
    return [package.name for package in PACKAGES if not present(package)]


def ensure_system_packages() -> None:
    """Install what is missing; do nothing where all is there."""
    missing = missing_packages()
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise ClusterError(f"install these programs with the system's package manager, then try again: {names}")
    if os.geteuid() != 0:
        raise ClusterError(f"as root, run: apt-get install -y {names}")
    say(f"installing system packages, about a minute: {names}")
    with phase("system packages installed"):
        _apt(["dpkg", "--configure", "-a"])
        if _apt(_install(missing)) != 0:
            _apt(["apt-get", "update", "-q"])
            if _apt(_install(missing)) != 0:
                raise ClusterError(f"apt-get could not install them; see its messages with: apt-get install {names}")
    if missing := missing_packages():
        raise ClusterError(f"still missing after the installation: {' '.join(missing)}")


def _install(names: list[str]) -> list[str]:
    return ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]


def _apt(command: list[str]) -> int:
    """Run a package command to its end whatever happens: one that is cut off leaves the system half configured."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return running.wait()
    except KeyboardInterrupt:
        running.wait()
        raise
