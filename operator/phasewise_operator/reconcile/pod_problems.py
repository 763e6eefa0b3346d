"""Why pods are not ready, in a user's words: an ordered chain of checks, of which the first that applies speaks. Pure.

| what the pod shows                           | reason                           | stalls                    |
|----------------------------------------------|----------------------------------|---------------------------|
| the scheduler found no node                  | Unschedulable                    | no: a node may come       |
| the claim of a pvc:// model is not there     | ModelUnavailable                 | yes                       |
| a secret is missing (from Events)            | SecretNotFound                   | yes                       |
| a volume cannot be mounted (from Events)     | VolumeNotMounted                 | no: the kubelet tries on  |
| the image cannot be had                      | ImageUnavailable                 | yes                       |
| the container cannot be made                 | InvalidPod                       | yes                       |
| it was killed for memory                     | OutOfMemory                      | from the second time on   |
| the launcher says: change the InferenceService| ModelUnavailable, InvalidEngine | yes                       |
| the engine failed, or does not come up       | EngineFailed, EngineNotServing   | from the second time on   |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from phasewise_operator.observed import Ended, PodView
from phasewise_runtime import contract

_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_CLAIM: Final = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_SECRET: Final = re.compile(r'secret "([^"]+)" not found')
_EXITS: Final = {contract.EXIT_ENGINE: "EngineFailed", contract.EXIT_STARTUP: "EngineNotServing"}
_LONGEST: Final = 1000


@dataclass(frozen=True)
class PodProblem:
    reason: str
    message: str
    stalls: bool
    """Nothing will change until somebody acts."""


def pod_problem(pods: Sequence[PodView]) -> PodProblem | None:
    """The first problem of any pod that is meant to run; what stalls goes before what may pass."""
    found = [t for pod in pods if not pod.ready and not pod.deleting and (t := _of(pod))]
    return next((t for t in found if t.stalls), found[0] if found else None)


def _of(pod: PodView) -> PodProblem | None:
    if pod.unschedulable:
        return _unschedulable(pod)
    if pod.mount_error:
        return _mount(pod)
    if pod.waiting_reason in (*_IMAGE, *_CONFIG):
        return _waiting(pod)
    return _failure(pod, pod.ended) if pod.ended else None


def _unschedulable(pod: PodView) -> PodProblem:
    if claim := _CLAIM.search(pod.unschedulable):
        text = f"claim {claim[1]} is not there: create it in this namespace, or correct spec.model.uri"
        return PodProblem("ModelUnavailable", f"{text}; pod {pod.name} waits for it", stalls=True)
    return PodProblem("Unschedulable", f"pod {pod.name}: {pod.unschedulable}", stalls=False)


def _waiting(pod: PodView) -> PodProblem:
    text = f"pod {pod.name}: {pod.waiting_message or pod.waiting_reason}"
    if pod.waiting_reason in _CONFIG:
        return PodProblem("InvalidPod", text, stalls=True)
    return PodProblem(
        "ImageUnavailable", f"{text}; check the image's name and tag, and spec.imagePullSecrets", stalls=True
    )


def _mount(pod: PodView) -> PodProblem:
    missing = _SECRET.search(pod.mount_error)
    if missing:
        text = f"secret {missing[1]} is not there: create it in this namespace; pod {pod.name} waits for it"
        return PodProblem("SecretNotFound", text, stalls=True)
    return PodProblem("VolumeNotMounted", f"pod {pod.name}: {pod.mount_error}", stalls=False)


def _failure(pod: PodView, ended: Ended) -> PodProblem:
    again = pod.restarts > 1  # the kubelet's first restart is at once, and often all that was needed
    if ended.reason == "OOMKilled":
        hint = "raise resources.limits.memory, or lower the engine's KV cache in spec.engine.args"
        return PodProblem("OutOfMemory", f"pod {pod.name} was killed for want of memory: {hint}", again)
    text = f"pod {pod.name}: {ended.message[:_LONGEST] or f'exit code {ended.code}, without a word'}"
    if ended.code == contract.EXIT_CONFIG:
        about_model = "spec.model" in ended.message.partition("\n")[0]
        return PodProblem("ModelUnavailable" if about_model else "InvalidEngine", text, stalls=True)
    return PodProblem(_EXITS.get(ended.code, "ContainerFailed"), text, again)
