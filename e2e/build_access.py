"""How a build reaches package registries: with this machine's own settings, mounted read-only and never in an image."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

CERTIFICATES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
IN_IMAGE = "/etc/ssl/certs/ca-certificates.crt"
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "timeout", "proxy")
APT_SETTINGS = ("Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::http::Proxy", "Acquire::https::Proxy")


@contextmanager
def access_options(folder: Path) -> Generator[list[str]]:
    """buildah options that mount the certificates and settings of pip and uv; they live only as long as the build."""
    pip, uv = folder / "pip.conf", folder / "uv.toml"
    values = _pip_values()
    pip.write_text(pip_settings(values), encoding="utf-8")
    uv.write_text(uv_settings(values), encoding="utf-8")
    mounts = {str(pip): "/etc/pip.conf", str(uv): "/etc/uv/uv.toml"}
    bundle = next(
        (path for path in (Path(os.environ.get("SSL_CERT_FILE", "/")), *CERTIFICATES) if path.is_file()), None
    )
    if bundle is not None:
        mounts[str(bundle)] = IN_IMAGE
    try:
        yield [option for source, target in mounts.items() for option in ("--volume", f"{source}:{target}:ro")]
    finally:
        pip.unlink()
        uv.unlink()


def pip_settings(values: dict[str, str]) -> str:
    return "\n".join(["[global]", f"cert = {IN_IMAGE}", *(f"{key} = {value}" for key, value in values.items()), ""])


def uv_settings(values: dict[str, str]) -> str:
    lines = ["system-certs = true"]
    if url := values.get("index-url"):
        lines += ["[[index]]", f'url = "{url}"', "default = true"]
    lines += [f'[[index]]\nurl = "{url}"' for url in values.get("extra-index-url", "").split()]
    return "\n".join([*lines, ""])


def _pip_values() -> dict[str, str]:
    """pip's settings on this machine, from its files and the environment."""
    listed = _output([sys.executable, "-m", "pip", "config", "list"])
    pairs = (line.partition("=") for line in listed.splitlines())
    found = {key.rpartition(".")[2]: value.strip("'\"") for key, _, value in pairs}
    return {key: found[key] for key in PIP_SETTINGS if key in found}


def apt_options() -> list[str]:
    """The machine's own apt settings that decide whether its package source is accepted and reached."""
    dump = _output(["apt-config", "dump"])
    kept = (line for line in dump.splitlines() if line.split(" ", 1)[0] in APT_SETTINGS and '""' not in line)
    return [f"--aptopt={line.rstrip(';')}" for line in kept]


def _output(command: list[str]) -> str:
    """The output of a command; empty where it fails or is not installed: then it has no settings either."""
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ""
