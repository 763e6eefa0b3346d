"""The project's local Kubernetes cluster, or the user's own (CLUSTER=current), behind one interface.

`python -m e2e.cluster` is the command; the demo and the tests call the functions here.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from e2e.cluster.interface import Cluster
from e2e.cluster.settings import ClusterError, settings_from

__all__ = ["Cluster", "ClusterError", "helm", "is_local", "kubectl", "selected"]


def selected() -> Cluster:
    """The cluster that the environment names. Imported here: the processes inside the node need none of it."""
    from e2e.cluster.current import CurrentCluster
    from e2e.cluster.local import LocalCluster

    which = _which()
    settings = settings_from(os.environ, Path.home())
    if which == "local":
        return LocalCluster(settings)
    if which == "current":
        return CurrentCluster(settings, os.environ)
    raise ClusterError(f"CLUSTER is {which!r}: use local (the default), or current for kubectl's current context")


def is_local() -> bool:
    return _which() == "local"


def _which() -> str:
    return os.environ.get("CLUSTER") or "local"


def kubectl(*arguments: str, text: str | None = None) -> str:
    """The output of kubectl, run with `text` as its input."""
    return _run("kubectl", arguments, text)


def helm(*arguments: str) -> str:
    return _run("helm", arguments, None)


def _run(name: str, arguments: tuple[str, ...], text: str | None) -> str:
    command, environment = selected().program(name)
    done = subprocess.run(
        [*command, *arguments], env=environment, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"{name} {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def up() -> None:
    selected().up()


def down() -> None:
    selected().down()


def kubeconfig_path() -> Path:
    return selected().kubeconfig_path()


def load_image(source: str) -> str:
    return selected().load_image(source)


def expose(target: str, local_port: int = 0) -> str:
    return selected().expose(target, local_port)


def unexpose(target: str) -> None:
    selected().unexpose(target)


def stop_component(name: str, *, at_once: bool = False) -> None:
    selected().stop_component(name, at_once=at_once)


def start_component(name: str) -> None:
    selected().start_component(name)


def audit_log_path() -> Path:
    return selected().audit_log_path()
