"""The user's own cluster (CLUSTER=current): kubectl's current context, and images by a registry that the user names."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster import images, runtime
from e2e.cluster.interface import Target, parse_target
from e2e.cluster.progress import POLL_SECONDS, wait_for
from e2e.cluster.settings import ClusterError, Settings

REGISTRY = "IMAGE_REGISTRY"
FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class CurrentCluster:
    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.forwards = settings.state.parent / "current"

    def up(self) -> None:
        """It is the user's: nothing to bring up, but it must answer."""
        self._kubectl("get", "--raw=/readyz")

    def down(self) -> None:
        for record in self.forwards.glob("*.json"):
            self._end(record)
        shutil.rmtree(self.forwards, ignore_errors=True)

    def status(self) -> bool:
        print(self._kubectl("version"), end="")
        print(self._kubectl("get", "nodes"), end="")
        return True

    def program(self, name: str) -> tuple[Sequence[str], Mapping[str, str]]:
        found = shutil.which(name, path=self.environ.get("PATH"))
        if found is None:
            raise ClusterError(f"CLUSTER=current uses the {name} on PATH, and there is none: install it")
        return [found], self.environ

    def kubeconfig_path(self) -> Path:
        return Path(self.environ.get("KUBECONFIG") or Path.home() / ".kube/config")

    def load_image(self, source: str) -> str:
        registry = self.environ.get(REGISTRY)
        if not registry or not source.startswith(images.BUILDAH):
            raise ClusterError(
                f"CLUSTER=current takes images from a registry: set {REGISTRY} to one that you may push to and the "
                "cluster may pull from, for example registry.example.com/team, and name an image as buildah:NAME"
            )
        local = source.removeprefix(images.BUILDAH)
        pushed = f"{registry.rstrip('/')}/{local.removeprefix('localhost/')}"
        environment = {"STORAGE_DRIVER": "overlay", **self.environ}
        done = subprocess.run(
            [runtime.require("buildah"), "push", local, f"docker://{pushed}"], env=environment, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"buildah could not push {pushed}; is the login right? see: buildah login {registry}")
        return pushed

    def add_node(self) -> str:
        raise ClusterError("your own cluster's nodes are not ours to add; use the local cluster for this")

    def remove_node(self) -> None:
        raise ClusterError("your own cluster's nodes are not ours to remove; use the local cluster for this")

    def expose(self, target: str, local_port: int = 0) -> str:
        wanted = parse_target(target)
        record = self._record(wanted)
        if record.exists():
            port = self._port_of(record)
            if port and local_port in (0, port):
                return f"http://127.0.0.1:{port}"
            self._end(record)
        return f"http://127.0.0.1:{self._forward(wanted, local_port, record)}"

    def unexpose(self, target: str) -> None:
        self._end(self._record(parse_target(target)))

    def stop_component(self, name: str, *, at_once: bool = False) -> None:
        raise ClusterError(f"{name} of your own cluster is not ours to stop; use the local cluster for this")

    def start_component(self, name: str) -> None:
        raise ClusterError(f"{name} of your own cluster is not ours to start; use the local cluster for this")

    def freeze_component(self, name: str) -> None:
        raise ClusterError(f"{name} of your own cluster is not ours to freeze; use the local cluster for this")

    def thaw_component(self, name: str) -> None:
        raise ClusterError(f"{name} of your own cluster is not ours to thaw; use the local cluster for this")

    def audit_log_path(self) -> Path:
        raise ClusterError("CLUSTER=current has no audit log that can be read here; use the local cluster for this")

    def _kubectl(self, *arguments: str) -> str:
        command, environment = self.program("kubectl")
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"kubectl's current context does not answer: {done.stderr.strip()}")
        return done.stdout

    def _forward(self, wanted: Target, local_port: int, record: Path) -> int:
        self.forwards.mkdir(parents=True, exist_ok=True)
        log = record.with_suffix(".log")
        kubectl, environment = self.program("kubectl")
        ports = f"{local_port or ''}:{wanted.port}"
        command = [*kubectl, "-n", wanted.namespace, "port-forward", f"service/{wanted.service}", ports]
        with log.open("w") as output:
            running = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

        def forwarding() -> re.Match[str] | None:
            if running.poll() is not None:
                raise ClusterError(f"kubectl port-forward ended: {log.read_text().strip()}")
            return FORWARDING.search(log.read_text())

        found = wait_for(f"kubectl port-forward to begin; see {log}", forwarding, 20, POLL_SECONDS)
        record.write_text(json.dumps({"pid": running.pid, "started": _started(running.pid), "port": int(found[1])}))
        return int(found[1])

    def _record(self, wanted: Target) -> Path:
        return self.forwards / f"{wanted.namespace}.{wanted.service}.{wanted.port}.json"

    def _port_of(self, record: Path) -> int | None:
        kept = json.loads(record.read_text())
        return kept["port"] if kept["started"] == _started(kept["pid"]) else None

    def _end(self, record: Path) -> None:
        if record.exists():
            kept = json.loads(record.read_text())
            if kept["started"] == _started(kept["pid"]):
                os.kill(kept["pid"], signal.SIGTERM)
            record.unlink()
            record.with_suffix(".log").unlink(missing_ok=True)


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks: with its number, which is used again, this names it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone"
    return "gone" if fields[0] == "Z" else fields[19]
