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
from phasewise_runtime.engine.failure_cause import failure_cause

_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_MOUNT: Final = ("FailedMount", "FailedAttachVolume")
_MOUNTED: Final = ("Pulling", "Pulled")
"""Images are pulled when all volumes have been mounted."""
_CLAIM: Final = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_SECRET: Final = re.compile(r'secret "([^"]+)" not found')
_BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*": (?:\w+: )?')
"""The kubelet's message between two pulls; the rest of it is the message of the last pull."""
_OWN_ADDRESS: Final = re.compile(r"\S+:\d+->(?=\S+:\d+)")
"""The node's end of a connection, with a port that is another each time."""
_INSUFFICIENT: Final = re.compile(r"Insufficient ([\w./-]*\w)")
_NO_PLACE: Final = re.compile(r"node affinity|node selector|taint")
_LONGEST: Final = 1000


@dataclass(frozen=True)
class PodProblem:
    reason: str
    message: str
    severity: Severity
    condition: str = ""
    """Condition that shows it too, beside that of the pod's role."""
    rollout_hint: str = ""
    """What helps where it holds up a rollout beside an old revision."""


@dataclass(frozen=True)
class Check:
    shows: str
    """What the pod shows, for the documentation."""
    reason: str
    severity: Severity
    message: Callable[[PodView, str], str | None]
    """From a pod that is not ready and the time now (RFC 3339, UTC); None: the check does not apply."""
    stalls_when_repeated: bool = False
    """STALLED from the second failure on: the kubelet restarts the first time at once, and that is often enough."""
    condition: str = ""
    gpu_hint: str = ""
    """The rollout hint for pods with GPUs."""

    def problem(self, pod: PodView, now: str) -> PodProblem | None:
        message = self.message(pod, now)
        if message is None:
            return None
        severity = Severity.STALLED if self.stalls_when_repeated and _has_failed_twice(pod) else self.severity
        return PodProblem(self.reason, message, severity, self.condition, self.gpu_hint if pod.gpus else "")


def _has_failed_twice(pod: PodView) -> bool:
    """The kubelet waits before the second restart, and not before the first."""
    return pod.restarts > 1 or (pod.restarts == 1 and pod.waiting_reason == "CrashLoopBackOff")


def _claim_missing(pod: PodView, _now: str) -> str | None:
    if claim := _CLAIM.search(pod.unschedulable):
        text = f"claim {claim[1]} is not there: create it in this namespace, or correct spec.model.uri"
        return f"{text}; pod {pod.name} waits for it"
    return None


def _unschedulable(pod: PodView, _now: str) -> str | None:
    return f"pod {pod.name}: {pod.unschedulable}{_scheduling_advice(pod)}" if pod.unschedulable else None


def _scheduling_advice(pod: PodView) -> str:
    """By what the scheduler misses. A GPU cannot be asked for in part, other resources can."""
    missing = list(dict.fromkeys(_INSUFFICIENT.findall(pod.unschedulable)))
    advice: list[str] = []
    if missing:
        advice.append(f"free {' and '.join(missing)}, or add nodes")
    if any("/" not in name for name in missing):
        advice.append(f"or lower spec.{pod.role}.resources")
    if _NO_PLACE.search(pod.unschedulable):
        field = f"spec.{pod.role}.template"
        places = f"spec.{pod.role}.accelerator and {field}" if pod.role in contract.ENGINE_ROLES else field
        advice.append(f"check nodeSelector, affinity and tolerations in {places}")
    return f"; {', '.join(advice)}" if advice else ""


def _secret_missing(pod: PodView, _now: str) -> str | None:
    if secret := _SECRET.search(_mount_error(pod)):
        return f"secret {secret[1]} is not there: create it in this namespace; pod {pod.name} waits for it"
    return None


def _not_mounted(pod: PodView, _now: str) -> str | None:
    return f"pod {pod.name}: {_mount_error(pod)}" if _mount_error(pod) else None


def _image_unavailable(pod: PodView, _now: str) -> str | None:
    if pod.waiting_reason not in _IMAGE:
        return None
    text = _OWN_ADDRESS.sub("", _BACK_OFF.sub("", _waiting_text(pod)))
    return f"pod {pod.name}: {text}; check the image's name and tag, and spec.imagePullSecrets"


def _invalid_pod(pod: PodView, _now: str) -> str | None:
    return f"pod {pod.name}: {_waiting_text(pod)}" if pod.waiting_reason in _CONFIG else None


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
        # A code of the launcher: it has seen all lines, and wrote the cause first. Of others there is the log's end.
        text = pod.ended.message[:_LONGEST] if code is not None else _with_cause_first(pod.ended.message)
        text = text or f"exit code {pod.ended.code}, without a message"
        return f"pod {pod.name}: {text}"

    return message


def _with_cause_first(text: str) -> str:
    lines = text.splitlines()
    cause = failure_cause(lines)
    return (text if not cause or cause in lines[0] else f"{cause}\n{text}")[:_LONGEST]


CHECKS: tuple[Check, ...] = (
    Check(
        "the claim of a pvc:// model does not exist",
        *("ModelUnavailable", Severity.STALLED, _claim_missing),
        condition=MODEL_READY,
    ),
    Check(
        "the scheduler finds no node",
        *("Unschedulable", Severity.WARNING, _unschedulable),
        gpu_hint="to let the old revision go first, set spec.rollout.allowDowntime",
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
        "the launcher or the engine refuses another part of the spec",
        "InvalidEngine",
        Severity.STALLED,
        _exit(contract.EXIT_CONFIG),
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
    return pod.waiting_message or pod.waiting_reason


def problems_table() -> str:
    """CHECKS as the Markdown table of docs/architecture.md."""
    lines = ["| what the pod shows | reason | what follows |", "|---|---|---|"]
    for check in CHECKS:
        repeated = f"; from the second failure on it {Severity.STALLED}" if check.stalls_when_repeated else ""
        lines.append(f"| {check.shows} | `{check.reason}` | {check.severity}{repeated} |")
    return "\n".join(lines) + "\n"
