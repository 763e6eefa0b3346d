"""Parses model URIs, for the operator's builders and the launcher. Pure: preflight checks that the weights exist."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from phasewise_runtime import contract

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION: Final = re.compile(r"[\w./-]+")
_CLAIM: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


class ModelUriError(ValueError):
    """The URI cannot be served; the message says what to write instead."""


@dataclass(frozen=True)
class ModelLocation:
    """The model argument of the engine, and the volume that the pod mounts for it."""

    reference: str
    """A folder in the pod, or a Hugging Face repository."""
    revision: str | None = None
    local: bool = True
    """The files are in the pod before the engine starts."""
    claim: str | None = None
    """PersistentVolumeClaim to mount read-only at `mount`."""
    mount: str | None = None
    """Folder of the models volume: the claim, or a writable volume for fetched weights; None mounts nothing."""


def model_location(uri: str) -> ModelLocation:
    """Parse a model URI: `file:///path`, `hf://org/name@revision`, `pvc://claim/path`."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise ModelUriError(f"model uri {uri!r} has no scheme: write hf://org/name, pvc://claim/path or file:///path")
    read = _SCHEMES.get(scheme)
    if read is None:
        raise ModelUriError(f"model uri {uri!r}: scheme {scheme} is unknown; use hf://, pvc:// or file://")
    return read(rest)


def _file(rest: str) -> ModelLocation:
    if not rest.startswith("/"):
        raise ModelUriError(f"model uri file://{rest}: write an absolute path with three slashes, file:///path")
    return ModelLocation(_inside("/", rest))


def _hugging_face(rest: str) -> ModelLocation:
    repository, at, revision = rest.partition("@")
    if not _REPOSITORY.fullmatch(repository):
        raise ModelUriError(f"model uri hf://{rest}: write hf://org/name, with @revision after it for a fixed revision")
    if at and not _REVISION.fullmatch(revision):
        raise ModelUriError(f"model uri hf://{rest}: after @ write a branch, a tag or a commit")
    return ModelLocation(repository, revision or None, local=False, mount=contract.MODEL_CACHE_DIR)


def _claim(rest: str) -> ModelLocation:
    claim, _, path = rest.partition("/")
    if not _CLAIM.fullmatch(claim):
        raise ModelUriError(f"model uri pvc://{rest}: write pvc://claim-name/path-in-the-claim")
    mount = contract.MODEL_CACHE_DIR
    return ModelLocation(_inside(mount, path), claim=claim, mount=mount)


def _inside(root: str, path: str) -> str:
    if ".." in path.split("/"):
        raise ModelUriError(f"model path {path!r}: write it without '..'")
    return posixpath.normpath(posixpath.join(root, path.lstrip("/")))


def _unsupported(scheme: str) -> Callable[[str], ModelLocation]:
    def refuse(rest: str) -> ModelLocation:
        raise ModelUriError(
            f"model uri {scheme}://{rest}: {scheme}:// is not supported yet; copy the weights into a "
            "PersistentVolumeClaim and use pvc://claim/path, or use hf://org/name"
        )

    return refuse


_SCHEMES: Final[Mapping[str, Callable[[str], ModelLocation]]] = {
    "file": _file,
    "hf": _hugging_face,
    "pvc": _claim,
    "s3": _unsupported("s3"),
    "oci": _unsupported("oci"),
}
