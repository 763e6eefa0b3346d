"""The first process of the node: sets up the node's own namespaces, then becomes `pause`, which holds them.

Runs as process 1 inside fresh network, mount and process namespaces (see node.py), so all that it mounts and adds is
the node's only, and is gone when the node is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from e2e.cluster.settings import NODE_NETWORK, SERVICE_CIDR

# What the kubelet wants to see; it writes them otherwise, and the machine's own values are not the node's to change.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Programs write here, and the machine must not see it.
SHADOWED = ("/var/lib", "/var/log")
NODE_LINK, FREE_END = "node0", "node0-peer"
"""The two ends of a node's link: the one with its address, and the other."""


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def mount(*arguments: str) -> None:
    run("mount", *arguments)


def main(pause: str, marker: str, ip: str, *keep: str) -> None:
    _private_run_folder(keep)
    _own_sys()
    for folder in SHADOWED:
        _shadow(folder)
    for index, folder in enumerate(keep):
        mount("--bind", f"/run/keep/{index}", folder)
    _no_name_server()
    _protect_kernel_settings()
    # Last: what is shared would take a mount's copies away with the mount.
    mount("--make-rshared", "/")
    _network(ip)
    os.execv(pause, ["pause", marker])


def _private_run_folder(keep: tuple[str, ...]) -> None:
    """An empty /run; through it pass the control groups, and the folders that lie where others are shadowed."""
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    Path("/run/lock").mkdir()
    passing = {f"/run/keep/{index}": folder for index, folder in enumerate(keep)}
    for passed, folder in {**passing, "/run/keep/cgroup": "/sys/fs/cgroup"}.items():
        Path(passed).mkdir(parents=True)
        mount("--rbind", folder, passed)


def _own_sys() -> None:
    """/sys shows the devices of this network namespace; the control groups are the machine's, in either version."""
    run("umount", "--lazy", "/sys")
    mount("-t", "sysfs", "sysfs", "/sys")
    mount("--rbind", "/run/keep/cgroup", "/sys/fs/cgroup")
    run("umount", "--lazy", "/run/keep/cgroup")


def _shadow(folder: str) -> None:
    upper, work = (Path("/run/shadow") / folder.strip("/") / part for part in ("upper", "work"))
    upper.mkdir(parents=True)
    work.mkdir()
    mount("-t", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", "overlay", folder)


def _no_name_server() -> None:
    """The node has no uplink: nothing in it should wait for the machine's name server."""
    empty, used = Path("/run/resolv.conf"), Path("/etc/resolv.conf").resolve()
    empty.touch()
    if used.exists():
        mount("--bind", str(empty), str(used))


def _protect_kernel_settings() -> None:
    """Only net/ belongs to this network namespace; the rest of /proc/sys is the machine's, so it is read-only here."""
    for group in ("vm", "kernel", "fs"):
        mount("--bind", f"/proc/sys/{group}", f"/proc/sys/{group}")
        mount("-o", "remount,bind,ro", f"/proc/sys/{group}")
    shown = Path("/run/kernel-settings")
    shown.mkdir()
    for setting, value in KERNEL_SETTINGS.items():
        file = shown / setting.replace("/", "-")
        file.write_text(value + "\n")
        mount("--bind", str(file), f"/proc/sys/{setting}")


def _network(ip: str) -> None:
    """One address, joined to nothing: service addresses are routed to it, so that they never leave the node.

    The other end of its link is free: a second node's is what joins it to the first.
    """
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", NODE_LINK, "type", "veth", "peer", "name", FREE_END)
    run("ip", "link", "set", FREE_END, "up")
    run("ip", "link", "set", NODE_LINK, "up")
    run("ip", "address", "add", f"{ip}/{NODE_NETWORK.partition('/')[2]}", "dev", NODE_LINK)
    run("ip", "route", "add", SERVICE_CIDR, "dev", NODE_LINK, "src", ip)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if bridged.exists():
        bridged.write_text("1")


if __name__ == "__main__":
    main(*sys.argv[1:])
