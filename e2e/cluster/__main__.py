"""`python -m e2e.cluster VERB`: the command line of the cluster, thin over its functions."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import selected
from e2e.cluster.interface import Cluster
from e2e.cluster.progress import say
from e2e.cluster.settings import ClusterError, settings_from

PASSED_ON = ("kubectl", "helm")


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m e2e.cluster", description="The project's local Kubernetes cluster.")
    verbs = root.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="bring the cluster up; what is there already stays")
    verbs.add_parser("down", help="remove the cluster; only the build cache remains")
    verbs.add_parser("clean", help="remove the cluster and the build cache")
    verbs.add_parser("status", help="versions, node and forwards; exit code 0 when every part works")
    verbs.add_parser("kubeconfig", help="print the kubeconfig's path")
    verbs.add_parser("audit-path", help="print the path of the API server's record of writes")
    for name in PASSED_ON:
        verbs.add_parser(name, help=f"run {name} on the cluster with the arguments that follow")
    load = verbs.add_parser("load-image", help="make an image known to the cluster's node")
    load.add_argument("source", help="a docker archive's path, or buildah:NAME")
    expose = verbs.add_parser("expose", help="a Service's port on this machine's loopback; prints the URL")
    expose.add_argument("target", help="NAMESPACE/SERVICE:PORT")
    expose.add_argument("local_port", nargs="?", type=int, default=0, help="a free one when left out")
    unexpose = verbs.add_parser("unexpose", help="end what expose began")
    unexpose.add_argument("target", help="NAMESPACE/SERVICE:PORT")
    second = verbs.add_parser("node", help="add a second node, or remove it with all that runs there")
    second.add_argument("action", choices=("add", "remove"))
    for verb in ("stop", "start"):
        component = verbs.add_parser(verb, help=f"{verb} one part of the cluster, such as kube-apiserver")
        component.add_argument("component")
    return root


def act(cluster: Cluster, arguments: argparse.Namespace) -> int:
    """Do what the verb says; the exit code."""
    match arguments.verb:
        case "up":
            cluster.up()
        case "down":
            cluster.down()
        case "clean":
            cluster.down()
            remove_cache(settings_from(os.environ, Path.home()).cache)
        case "status":
            return 0 if cluster.status() else 1
        case "unexpose":
            cluster.unexpose(arguments.target)
        case "node" if arguments.action == "remove":
            cluster.remove_node()
        case "stop":
            cluster.stop_component(arguments.component)
        case "start":
            cluster.start_component(arguments.component)
        case _:
            print(_answer(cluster, arguments))
    return 0


def _answer(cluster: Cluster, arguments: argparse.Namespace) -> str:
    match arguments.verb:
        case "kubeconfig":
            return str(cluster.kubeconfig_path())
        case "audit-path":
            return str(cluster.audit_log_path())
        case "load-image":
            return cluster.load_image(arguments.source)
        case "node":
            return cluster.add_node()
        case "expose":
            return cluster.expose(arguments.target, arguments.local_port)
        case verb:
            raise AssertionError(verb)


def remove_cache(cache: Path) -> None:
    say(f"removing {cache}")
    # Layers that an interrupted build left mounted would be emptied instead of removed.
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{cache}/")), reverse=True):
        subprocess.run(["umount", mount], check=True)
    if cache.exists():
        shutil.rmtree(cache)


def main(given: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if given and given[0] in PASSED_ON:
            command, environment = selected().program(given[0])
            os.execvpe(command[0], [*command, *given[1:]], dict(environment))
        return act(selected(), parser().parse_args(given))
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
