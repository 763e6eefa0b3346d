"""helm, as the chart's tests use it: rendering only, no cluster; and what they look up in the manifests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cluster.settings import settings_from

CHART = Path(__file__).parents[2] / "charts/phasewise"
Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def the_container(manifests: list[Manifest]) -> Manifest:
    (deployment,) = of_kind(manifests, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def environment(manifests: list[Manifest]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in the_container(manifests)["env"] if "value" in entry}


def _helm() -> str:
    """The user's helm, or the one that the local cluster has built."""
    built = settings_from(os.environ, Path.home()).cache.glob("bin/*/helm")
    found = shutil.which("helm") or next((str(path) for path in built), None)
    if found is None:
        pytest.skip("there is no helm yet: install it, or let `python -m e2e.cluster up` build it")
    return found


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    binary = _helm()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture(scope="session")
def template(
    helm: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`helm template` with values such as "replicas=3" (JSON on the right hand side)."""

    def run(*values: str) -> subprocess.CompletedProcess[str]:
        given = [part for value in values for part in ("--set-json", value)]
        return helm("template", "phasewise", str(CHART), "--namespace=system", "--kube-version=1.34.0", *given)

    return run


@pytest.fixture(scope="session")
def render(template: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """The manifests that these values make."""

    def run(*values: str) -> list[Manifest]:
        done = template(*values)
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    return run
