"""Why pods are not ready, in a user's words: an ordered chain of checks, of which the first that applies speaks. Pure.

| what the pod shows                           | reason            | stalls |
|----------------------------------------------|-------------------|--------|
| scheduler found no node                      | Unschedulable     | no: a node may come |
| a secret or volume is missing (from Events)  | SecretNotFound, VolumeNotMounted | yes |
| the image cannot be had                      | ImageUnavailable  | yes    |
| the container cannot be made                 | InvalidPod        | yes    |
| it ended with last words "Reason: message"   | that reason       | yes, after the second time |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from phasewise_operator.reconcile.state import PodView

_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_SECRET: Final = re.compile(r'secret "([^"]+)" not found')
_LAST_WORDS: Final = re.compile(r"^([A-Z][A-Za-z]{2,60}): (.+)$", re.DOTALL)
_LONGEST: Final = 1000


@dataclass(frozen=True)
class Trouble:
    reason: str
    message: str
    stalls: bool
    """Nothing will change until somebody acts."""


def trouble_of(pods: Sequence[PodView]) -> Trouble | None:
    """The first trouble of any pod that is meant to run; what stalls goes before what may pass."""
    found = [t for pod in pods if not pod.ready and not pod.deleting and (t := _of(pod))]
    return next((t for t in found if t.stalls), found[0] if found else None)


def _of(pod: PodView) -> Trouble | None:
    if pod.unschedulable:
        return Trouble("Unschedulable", f"pod {pod.name}: {pod.unschedulable}", stalls=False)
    if pod.mount_error:
        return _mount(pod)
    if pod.waiting_reason in _IMAGE:
        hint = "check the image's name and tag, and spec.imagePullSecrets"
        return Trouble(
            "ImageUnavailable", f"pod {pod.name}: {pod.waiting_message or pod.waiting_reason}; {hint}", stalls=True
        )
    if pod.waiting_reason in _CONFIG:
        return Trouble("InvalidPod", f"pod {pod.name}: {pod.waiting_message or pod.waiting_reason}", stalls=True)
    if pod.last_words:
        return _ended(pod)
    return None


def _mount(pod: PodView) -> Trouble:
    missing = _SECRET.search(pod.mount_error)
    if missing:
        text = f"secret {missing[1]} is not there: create it in this namespace; pod {pod.name} waits for it"
        return Trouble("SecretNotFound", text, stalls=True)
    return Trouble("VolumeNotMounted", f"pod {pod.name}: {pod.mount_error}", stalls=True)


def _ended(pod: PodView) -> Trouble:
    said = _LAST_WORDS.match(pod.last_words)
    reason, text = (said[1], said[2]) if said else ("ContainerFailed", pod.last_words)
    return Trouble(reason, f"pod {pod.name}: {text[-_LONGEST:].strip()}", stalls=pod.restarts > 0)
