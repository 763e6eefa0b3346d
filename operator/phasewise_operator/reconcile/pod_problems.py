"""Why pods are not ready, in a user's words: CHECKS is an ordered chain, of which the first that applies speaks. Pure.

A new check is a row in CHECKS. docs/architecture.md shows its columns, and a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from phasewise_operator.observed import PodView
from phasewise_operator.reconcile.conditions import MODEL_READY, Severity
from phasewise_runtime import contract

_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_MOUNT: Final = ("FailedMount", "FailedAttachVolume")
_MOUNTED: Final = ("Pulling", "Pulled")
"""Images are pulled when all volumes have been mounted."""
_CLAIM: Final = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_SECRET: Final = re.compile(r'secret "([^"]+)" not found')
_LONGEST: Final = 1000


@dataclass(frozen=True)
class PodProblem:
    reason: str
    message: str
    severity: Severity
    condition: str = ""
    """Condition that shows it too, beside that of the pod's role."""
    rollout_hint: str = ""
    """What helps where it holds up a rollout."""


@dataclass(frozen=True)
class Check:
    shows: str
    """What the pod shows, for the documentation."""
    reason: str
    severity: Severity
    message: Callable[[PodView, str], str | None]
    """From a pod that is not ready and the time now (RFC 3339, UTC); None: the check does not apply."""
    stalls_when_repeated: bool = False
    """STALLED from the second restart on: the kubelet restarts the first time at once, and that is often enough."""
    condition: str = ""
    rollout_hint: str = ""

    def problem(self, pod: PodView, now: str) -> PodProblem | None:
        message = self.message(pod, now)
        if message is None:
            return None
        repeated = self.stalls_when_repeated and pod.restarts > 1
        severity = Severity.STALLED if repeated else self.severity
        return PodProblem(self.reason, message, severity, self.condition, self.rollout_hint)


def _claim_missing(pod: PodView, _now: str) -> str | None:
    if claim := _CLAIM.search(pod.unschedulable):
        text = f"claim {claim[1]} is not there: create it in this namespace, or correct spec.model.uri"
        return f"{text}; pod {pod.name} waits for it"
    return None


def _unschedulable(pod: PodView, _now: str) -> str | None:
    return f"pod {pod.name}: {pod.unschedulable}" if pod.unschedulable else None


def _secret_missing(pod: PodView, _now: str) -> str | None:
    if secret := _SECRET.search(_mount_error(pod)):
        return f"secret {secret[1]} is not there: create it in this namespace; pod {pod.name} waits for it"
    return None


def _not_mounted(pod: PodView, _now: str) -> str | None:
    return f"pod {pod.name}: {_mount_error(pod)}" if _mount_error(pod) else None


def _image_unavailable(pod: PodView, _now: str) -> str | None:
    if pod.waiting_reason not in _IMAGE:
        return None
    return f"{_waiting_text(pod)}; check the image's name and tag, and spec.imagePullSecrets"


def _invalid_pod(pod: PodView, _now: str) -> str | None:
    return _waiting_text(pod) if pod.waiting_reason in _CONFIG else None


def _out_of_memory(pod: PodView, _now: str) -> str | None:
    if pod.ended is None or pod.ended.reason != "OOMKilled":
        return None
    hint = "raise resources.limits.memory, or lower the engine's KV cache in spec.engine.args"
    return f"pod {pod.name} was killed for want of memory: {hint}"


def _model_refused(pod: PodView, now: str) -> str | None:
    about_model = pod.ended is not None and "spec.model" in pod.ended.message.partition("\n")[0]
    return _exit(contract.EXIT_CONFIG)(pod, now) if about_model else None


def _exit(code: int | None = None) -> Callable[[PodView, str], str | None]:
    """Of a container that ended with that exit code; None: with any."""

    def message(pod: PodView, _now: str) -> str | None:
        if pod.ended is None or code not in (None, pod.ended.code):
            return None
        text = pod.ended.message[:_LONGEST] or f"exit code {pod.ended.code}, without a message"
        return f"pod {pod.name}: {text}"

    return message


CHECKS: tuple[Check, ...] = (
    Check(
        "the claim of a pvc:// model does not exist",
        *("ModelUnavailable", Severity.STALLED, _claim_missing),
        condition=MODEL_READY,
    ),
    Check(
        "the scheduler finds no node",
        *("Unschedulable", Severity.NORMAL, _unschedulable),
        rollout_hint="free capacity, or set spec.scaling.gpuBudget so that the old revision goes first",
    ),
    Check("a secret does not exist", "SecretNotFound", Severity.STALLED, _secret_missing),
    Check("a volume cannot be mounted", "VolumeNotMounted", Severity.WARNING, _not_mounted),
    Check("the image cannot be pulled", "ImageUnavailable", Severity.STALLED, _image_unavailable),
    Check("a container cannot be created", "InvalidPod", Severity.STALLED, _invalid_pod),
    Check(
        "a container was killed for want of memory",
        *("OutOfMemory", Severity.WARNING, _out_of_memory),
        stalls_when_repeated=True,
    ),
    Check(
        "the launcher refuses spec.model",
        *("ModelUnavailable", Severity.STALLED, _model_refused),
        condition=MODEL_READY,
    ),
    Check(
        "the launcher refuses another part of the spec", "InvalidEngine", Severity.STALLED, _exit(contract.EXIT_CONFIG)
    ),
    Check(
        "the engine failed",
        *("EngineFailed", Severity.WARNING, _exit(contract.EXIT_ENGINE)),
        stalls_when_repeated=True,
    ),
    Check(
        "the engine did not start in time",
        *("EngineNotServing", Severity.WARNING, _exit(contract.EXIT_STARTUP)),
        stalls_when_repeated=True,
    ),
    Check(
        "a container failed with another exit code",
        *("ContainerFailed", Severity.WARNING, _exit()),
        stalls_when_repeated=True,
    ),
)


def pod_problem(pods: Sequence[PodView], now: str) -> PodProblem | None:
    """The first problem of any pod that is to run; one that stalls goes before the others. `now`: RFC 3339, UTC."""
    found = [problem for pod in pods if not pod.ready and not pod.deleting and (problem := _problem(pod, now))]
    return next((p for p in found if p.severity is Severity.STALLED), found[0] if found else None)


def _problem(pod: PodView, now: str) -> PodProblem | None:
    return next((problem for check in CHECKS if (problem := check.problem(pod, now))), None)


def _mount_error(pod: PodView) -> str:
    newest = next((e for e in reversed(pod.events) if e.reason in (*_MOUNT, *_MOUNTED)), None)
    return newest.note if newest and newest.reason in _MOUNT else ""


def _waiting_text(pod: PodView) -> str:
    return f"pod {pod.name}: {pod.waiting_message or pod.waiting_reason}"


def problems_table() -> str:
    """CHECKS as the Markdown table of docs/architecture.md."""
    lines = ["| what the pod shows | reason | what follows |", "|---|---|---|"]
    for check in CHECKS:
        repeated = f"; from the second restart on it {Severity.STALLED}" if check.stalls_when_repeated else ""
        lines.append(f"| {check.shows} | `{check.reason}` | {check.severity}{repeated} |")
    return "\n".join(lines) + "\n"
