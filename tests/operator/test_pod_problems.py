"""Why a pod is not ready, in the words that a user sees."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest

from phasewise_operator.observed import PodEvent, PodView
from phasewise_operator.reconcile import pod_problems
from phasewise_operator.reconcile.conditions import Severity
from phasewise_operator.reconcile.pod_problems import CHECKS, Check, pod_problem
from phasewise_runtime import contract


def pod(status: dict[str, Any], mount_error: str = "", **meta: Any) -> PodView:
    labels = {contract.LABEL_ROLE: "decode", contract.LABEL_REVISION: "r"}
    events = [PodEvent("FailedMount", mount_error)] if mount_error else []
    live = {"metadata": {"name": "p", "labels": labels, **meta}, "status": status}
    return PodView.of(live, [PodEvent("Scheduled", ""), *events])


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(message: str, restarts: int, code: int = 1, reason: str = "Error") -> dict[str, Any]:
    terminated = {"exitCode": code, "message": message, "reason": reason}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    return {"containerStatuses": [{"state": state, "lastState": {"terminated": terminated}, "restartCount": restarts}]}


NOW = "2026-01-02T03:04:05Z"
UNSCHEDULABLE = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
}
NO_CLAIM = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": 'persistentvolumeclaim "weights" not found',
        }
    ]
}
CASES: list[tuple[dict[str, Any], str, str | None, bool, str]] = [
    ({}, "", None, False, ""),
    (waiting("ContainerCreating"), "", None, False, ""),
    (UNSCHEDULABLE, "", "Unschedulable", False, "0/3 nodes"),
    (NO_CLAIM, "", "ModelUnavailable", True, "claim weights is not there: create it"),
    (
        waiting("ContainerCreating"),
        'secret "hf" not found',
        "SecretNotFound",
        True,
        "secret hf is not there: create it",
    ),
    (waiting("ContainerCreating"), "claim is lost", "VolumeNotMounted", False, "claim is lost"),
    (waiting("ImagePullBackOff", "no such tag"), "", "ImageUnavailable", True, "no such tag"),
    (waiting("CreateContainerConfigError", "bad user"), "", "InvalidPod", True, "bad user"),
    (ended("spec.model.uri x: no folder", 0, 78), "", "ModelUnavailable", True, "no folder"),
    (ended("spec.engine.image has no NIXL", 0, 78), "", "InvalidEngine", True, "NIXL"),
    (ended("the engine was killed", 0, 70), "", "EngineFailed", False, "killed"),
    (ended("the engine was killed", 2, 70), "", "EngineFailed", True, "killed"),
    (ended("no answer in 3600 s", 2, 75), "", "EngineNotServing", True, "3600"),
    (ended("", 1, 137, "OOMKilled"), "", "OutOfMemory", False, "limits.memory"),
    (ended("", 3), "", "ContainerFailed", True, "exit code 1"),
    (ended("done", 1, code=0), "", None, False, ""),
]


@pytest.mark.parametrize(("status", "mount_error", "reason", "stalls", "text"), CASES)
def test_the_reason_a_user_sees(
    status: dict[str, Any], mount_error: str, reason: str | None, stalls: bool, text: str
) -> None:
    found = pod_problem([pod(status, mount_error)], NOW)
    assert (found.reason if found else None) == reason
    if found:
        assert (found.severity is Severity.STALLED) is stalls
        assert text in found.message


def test_a_problem_that_stalls_goes_before_one_that_passes() -> None:
    found = pod_problem([pod(UNSCHEDULABLE), pod(waiting("ErrImagePull", "x"))], NOW)
    assert found is not None
    assert found.reason == "ImageUnavailable"


def test_a_pod_that_is_being_deleted_is_no_problem() -> None:
    assert pod_problem([pod(waiting("ErrImagePull"), deletionTimestamp="now")], NOW) is None


def test_a_check_is_one_row_that_sees_events_and_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_no_sandbox(pod: PodView, now: str) -> str | None:
        failed = next((e for e in pod.events if e.reason == "FailedCreatePodSandBox"), None)
        if failed is None:
            return None
        lasts = datetime.fromisoformat(now) - datetime.fromisoformat(failed.first_seen)
        return f"pod {pod.name} has had no network for {lasts}" if lasts > timedelta(minutes=10) else None

    check = Check("its sandbox is not made", "SandboxSlow", Severity.NORMAL, has_no_sandbox, condition="ModelReady")
    monkeypatch.setattr(pod_problems, "CHECKS", (*CHECKS, check))
    event = PodEvent("FailedCreatePodSandBox", "", NOW, NOW)
    creating = dataclasses.replace(pod(waiting("ContainerCreating")), events=(event,))
    assert pod_problem([creating], "2026-01-02T03:14:05Z") is None
    found = pod_problem([creating], "2026-01-02T03:14:06Z")
    assert found is not None
    assert (found.reason, found.severity, found.condition) == ("SandboxSlow", Severity.NORMAL, "ModelReady")


def test_a_mount_error_is_over_once_an_image_is_pulled() -> None:
    events = (PodEvent("FailedMount", 'secret "hf" not found', NOW, NOW), PodEvent("Pulling", "", NOW, NOW))
    creating = dataclasses.replace(pod(waiting("ContainerCreating")), events=events)
    assert pod_problem([creating], NOW) is None
    again = dataclasses.replace(creating, events=(*reversed(events),))
    assert pod_problem([again], NOW) is not None
