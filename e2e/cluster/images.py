"""Images into the node without a registry: made from files with tar and JSON, or taken from buildah or an archive.

An image that is there already, by the id of its source, is not loaded again: the id is a label of the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import runtime
from e2e.cluster.progress import phase
from e2e.cluster.settings import ClusterError

SOURCE_LABEL = "phasewise.dev/source"
BUILDAH = "buildah:"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Recipe:
    """A one-layer image: files from this machine, links, and what runs."""

    name: str
    command: Sequence[str]
    files: Mapping[str, Path]
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: Sequence[str] = ()


def pause(program: Path) -> Recipe:
    return Recipe("docker.io/phasewise/pause:dev", ["/pause"], {"pause": program})


def coredns(program: Path) -> Recipe:
    return Recipe("docker.io/phasewise/coredns:dev", ["/coredns"], {"coredns": program})


def busybox(program: Path, applets: Sequence[str]) -> Recipe:
    """Small and with a shell: what tests run beside Phasewise."""
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    return Recipe("docker.io/phasewise/busybox:dev", ["sh"], {"bin/busybox": program}, links, ("tmp", "etc"))


def canonical(name: str) -> str:
    """The name under which the kubelet looks for an image: phasewise/x:dev is docker.io/phasewise/x:dev."""
    host, slash, rest = name.partition("/")
    if slash and host == "localhost":
        return canonical(rest)
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in host and ":" not in host:
        name = f"docker.io/{name}"
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"


def identity(recipe: Recipe) -> str:
    """Changes when the image would: its description, and its files by size and time of change."""
    stats = {inside: [path.stat().st_size, path.stat().st_mtime_ns] for inside, path in recipe.files.items()}
    described = [recipe.name, list(recipe.command), stats, dict(recipe.links), list(recipe.folders)]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def write_archive(recipe: Recipe, out: Path) -> None:
    """A docker archive: the layer, the configuration, and the manifest that names them."""
    layer = out.with_suffix(".layer")
    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as archive:
        _fill(archive, recipe)
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Cmd": list(recipe.command), "Env": [SEARCH_PATH], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "phasewise e2e"}],
        }
    ).encode()
    named = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": named, "RepoTags": [recipe.name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(out, "w") as archive:
        archive.add(layer, f"{digest}/layer.tar")
        _add_bytes(archive, named, config)
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def _fill(archive: tarfile.TarFile, recipe: Recipe) -> None:
    parents = {str(parent) for name in (*recipe.files, *recipe.links) for parent in Path(name).parents} - {"."}
    for folder in sorted(parents | set(recipe.folders)):
        entry = tarfile.TarInfo(folder)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
        archive.addfile(entry)
    for inside, path in recipe.files.items():
        entry = tarfile.TarInfo(inside)
        entry.size, entry.mode = path.stat().st_size, 0o755
        with path.open("rb") as content:
            archive.addfile(entry, content)
    for inside, target in recipe.links.items():
        entry = tarfile.TarInfo(inside)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        archive.addfile(entry)


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def busybox_applets(program: Path) -> list[str]:
    return subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()


def ensure_made(socket: Path, recipe: Recipe) -> None:
    """Make an image from its recipe and load it, unless it is there."""
    source = identity(recipe)
    if _source_of(socket, recipe.name) == source:
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "image.tar"
        write_archive(recipe, out)
        with out.open("rb") as archive:
            _import(socket, archive.fileno())
    _label(socket, recipe.name, source)


def load(socket: Path, source: str) -> str:
    """Load `buildah:NAME` or an archive's file; the name under which pods find it."""
    if source.startswith(BUILDAH):
        return _load_from_buildah(socket, source.removeprefix(BUILDAH))
    path = Path(source)
    if not path.is_file():
        raise ClusterError(f"{source} is not a file; give an image archive, or buildah:NAME for an image of buildah's")
    return _load_archive(socket, path)


def _load_from_buildah(socket: Path, local: str) -> str:
    buildah, environment = runtime.require("buildah"), {"STORAGE_DRIVER": "overlay", **os.environ}
    inspect = [buildah, "inspect", "--type=image", "--format={{.FromImageID}}", local]
    inspected = subprocess.run(inspect, env=environment, capture_output=True, text=True, check=False)
    if inspected.returncode != 0:
        raise ClusterError(f"buildah has no image {local}; see: buildah images")
    name, source = canonical(local), inspected.stdout.strip()
    if _source_of(socket, name) == source:
        return name
    with phase(f"image {name} loaded"), _pushed(buildah, environment, local, name) as archive:
        _import(socket, archive)
        _label(socket, name, source)
    return name


@contextmanager
def _pushed(buildah: str, environment: Mapping[str, str], local: str, name: str) -> Generator[int]:
    """An image of buildah's as a stream, so that gigabytes do not take a way round by a file."""
    command = [buildah, "push", "--quiet", local, f"docker-archive:/dev/stdout:{name}"]
    pushing = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert pushing.stdout is not None
    try:
        yield pushing.stdout.fileno()
        _, errors = pushing.communicate()
        if pushing.returncode != 0:
            raise ClusterError(f"buildah could not write {local}: {errors.decode()}")
    finally:
        pushing.kill()
        pushing.wait()


def _load_archive(socket: Path, path: Path) -> str:
    source, names = archive_identity(path)
    if not names:
        raise ClusterError(f"{path} names no image; write it with a name, as in docker-archive:{path}:NAME:TAG")
    wanted = [canonical(name) for name in names]
    if all(_source_of(socket, name) == source for name in wanted):
        return wanted[0]
    with phase(f"image {wanted[0]} loaded"):
        with path.open("rb") as archive:
            _import(socket, archive.fileno())
        for name, target in zip(names, wanted, strict=True):
            if name != target:
                _checked(runtime.ctr(socket, "images", "tag", "--force", name, target))
            _label(socket, target, source)
    return wanted[0]


def archive_identity(path: Path) -> tuple[str, list[str]]:
    """The id and the names of the first image of a docker archive."""
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile("manifest.json")
            assert member is not None
            first = json.load(member)[0]
    except (tarfile.TarError, KeyError) as error:
        raise ClusterError(f"{path} is not a docker archive, as buildah or docker save write it") from error
    return first["Config"], list(first.get("RepoTags") or [])


def _source_of(socket: Path, name: str) -> str | None:
    """The label that says what an image was loaded from."""
    listed = runtime.ctr(socket, "images", "list", f"name=={name}").stdout
    return next((text.partition("=")[2] for text in listed.replace(",", " ").split() if SOURCE_LABEL in text), None)


def _label(socket: Path, name: str, source: str) -> None:
    _checked(runtime.ctr(socket, "images", "label", name, f"{SOURCE_LABEL}={source}"))


def _import(socket: Path, archive: int) -> None:
    _checked(runtime.ctr(socket, "images", "import", "-", stdin=archive))
    if stale := stale_ids(runtime.ctr(socket, "images", "list").stdout):
        _checked(runtime.ctr(socket, "images", "rm", *stale))


def stale_ids(listing: str) -> list[str]:
    """Of containerd's images those that no name leads to any more: each would keep an old image's gigabytes."""
    rows = [line.split() for line in listing.splitlines()[1:] if line.strip()]
    named = {row[2] for row in rows if not row[0].startswith("sha256:")}
    return [row[0] for row in rows if row[0].startswith("sha256:") and row[2] not in named]


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise ClusterError(f"containerd refused: {(done.stderr or done.stdout).strip()}")
