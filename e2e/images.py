"""Build the images that ship: python -m e2e.images build [operator|runtime|vllm-cpu|all]

An image is keyed by what goes into it and skipped while that is unchanged. Builds run with buildah in a storage of
their own (`storage_environment` names it to the reader of an image: python -m e2e.cluster load-image
buildah:NAME). The base is Debian from the machine's own package source; `BASE_IMAGE` names another one (for example
python:3.11-slim where a registry can be reached).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from e2e.build_access import access_options, apt_options
from e2e.cluster import progress

say = partial(progress.say, who="images")
phase = partial(progress.phase, who="images")
ROOT = Path(__file__).resolve().parents[1]
TAG = "dev"
STAGING = "staging-"
BASE_NAME = "localhost/phasewise/base:bookworm"
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates", "libnuma1")
UNNEEDED_PATHS = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
MACHINE_TRACES = ("etc/hostname", "etc/resolv.conf", "etc/apt/apt.conf.d/99mmdebstrap")
"""What mmdebstrap takes over from the machine: it has no place in an image."""
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "operator", "runtime", "images/requirements.py")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")


class ImageError(Exception):
    """The build cannot go on; the message says what to do."""


@dataclass(frozen=True)
class Image:
    name: str
    context: tuple[str, ...]
    """Files and folders of the repository that the build sees, below `folder`."""
    folder: str = "."
    is_large: bool = False
    """What it replaces is removed at once; of the small ones the cached layers are worth more."""

    @property
    def dockerfile(self) -> Path:
        return ROOT / "images" / f"{self.name}.Dockerfile"

    @property
    def reference(self) -> str:
        return f"phasewise/{self.name}:{TAG}"

    @property
    def local(self) -> str:
        return f"localhost/{self.reference}"


IMAGES: Mapping[str, Image] = {
    "operator": Image("operator", SOURCES),
    "runtime": Image("runtime", SOURCES),
    "vllm-cpu": Image("vllm-cpu", (".",), folder="images/vllm-cpu", is_large=True),
}


@dataclass(frozen=True)
class Built:
    reference: str
    """As pods name it."""
    source: str
    """As load-image takes it, under `storage_environment`."""
    digest: str
    """Of all that went into it: the tag stays, this does not."""


def build(names: list[str]) -> list[Built]:
    """Build what changed; returns every image and where it is loaded from."""
    with _exclusive():
        base = os.environ.get("BASE_IMAGE") or _local_base()
        return [_build(IMAGES[name], base) for name in names]


@contextmanager
def _exclusive() -> Generator[None]:
    """One build at a time; what an interrupted one left in the storage would otherwise keep gigabytes."""
    with progress.exclusive(_cache() / "lock", "image build"):
        for left in _cache().glob(f"{STAGING}*"):
            shutil.rmtree(left)
        if subprocess.run(["buildah", "containers", "-q"], env=_environment(), capture_output=True, check=False).stdout:
            run(["buildah", "rm", "--all"])
        yield


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("PHASEWISE_CACHE") or f"{home}/phasewise").absolute() / "images"


def _local_base() -> str:
    digest = _text_digest(repr((BASE_PACKAGES, UNNEEDED_PATHS, MACHINE_TRACES)))
    mark = _cache() / "base.digest"
    if _is_current(mark, digest) and _exists(BASE_NAME):
        return BASE_NAME
    say("base: Debian packages, about a minute")
    with phase("base"), tempfile.TemporaryDirectory(prefix=STAGING, dir=_cache()) as folder:
        excluded = [f"--dpkgopt=path-exclude={path}" for path in UNNEEDED_PATHS]
        packages = f"--include={','.join(BASE_PACKAGES)}"
        traces = " ".join(f'"$1"/{path}' for path in MACHINE_TRACES)
        tar = f"{folder}/base.tar"
        run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                packages,
                *excluded,
                *apt_options(),
                f"--customize-hook=rm -f {traces}",
                "bookworm",
                tar,
            ]
        )
        Path(folder, "Dockerfile").write_text("FROM scratch\nADD base.tar /\n", encoding="utf-8")
        run(["buildah", "bud", "--quiet", "--tag", BASE_NAME, folder])
    mark.write_text(digest, encoding="utf-8")
    return BASE_NAME


def _build(image: Image, base: str) -> Built:
    mark = _cache() / f"{image.name}.digest"
    with tempfile.TemporaryDirectory(prefix=STAGING, dir=_cache()) as folder:
        context = Path(folder, "context")
        _stage(image, context)
        digest = _text_digest(base + image.dockerfile.read_text(encoding="utf-8") + _folder_digest(context))
        built = Built(image.reference, f"buildah:{image.local}", digest)
        if _is_current(mark, digest) and _exists(image.local):
            say(f"{image.reference}: unchanged")
            return built
        mark.unlink(missing_ok=True)
        with phase(f"{image.reference}: built"), access_options(Path(folder)) as access:
            options = ["--layers", "--file", str(image.dockerfile), "--build-arg", f"BASE={base}"]
            run(["buildah", "bud", *options, *access, "--tag", image.local, str(context)])
        if image.is_large:
            run(["buildah", "rmi", "--prune"])
    mark.write_text(digest, encoding="utf-8")
    return built


def _stage(image: Image, context: Path) -> None:
    """Copy what the build may see: nothing else can end in an image, or change its digest."""
    for name in image.context:
        source = ROOT / image.folder / name
        if not source.exists():
            raise ImageError(f"{source} is missing: {image.name}'s image needs it")
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=IGNORED, dirs_exist_ok=True)
        else:
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, context / name)


def _folder_digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "".join(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in files)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_current(mark: Path, digest: str) -> bool:
    return mark.is_file() and mark.read_text(encoding="utf-8") == digest


def _exists(reference: str) -> bool:
    command = ["buildah", "inspect", "--type", "image", reference]
    return subprocess.run(command, check=False, env=_environment(), capture_output=True).returncode == 0


def storage_environment() -> dict[str, str]:
    """The environment under which buildah works in our storage: the user's images are neither seen nor touched."""
    storage = _made(_cache() / "storage")
    settings = storage / "storage.conf"
    # Not under the runtime folder of the system: what buildah keeps there must go when the cache is removed.
    roots = {"graphroot": storage / "root", "runroot": storage / "run"}
    lines = ["[storage]", 'driver = "overlay"', *(f'{key} = "{path}"' for key, path in roots.items())]
    settings.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return {"CONTAINERS_STORAGE_CONF": str(settings), "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}


def _environment() -> dict[str, str]:
    return {**os.environ, **storage_environment()}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(command: list[str]) -> None:
    """Run to the end with its output kept in a log, which is shown where it fails."""
    log = _made(_cache()) / "build.log"
    with log.open("wb") as output:
        done = subprocess.run(command, check=False, env=_environment(), stdout=output, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
        raise ImageError(f"{tail}\n{command[0]} failed; all of its output is in {log}")


def main(arguments: list[str]) -> int:
    names = arguments[1:] or ["all"]
    if arguments[:1] != ["build"] or any(name not in (*IMAGES, "all") for name in names):
        say(f"usage: python -m e2e.images build [{'|'.join(IMAGES)}|all]")
        return 2
    from e2e.cluster.packages import ensure_system_packages

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ensure_system_packages()
        for built in build(list(IMAGES) if "all" in names else names):
            print(f"{built.reference} {built.source}")
    except ImageError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted: run the same command again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
