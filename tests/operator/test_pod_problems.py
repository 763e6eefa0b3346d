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


def ended(message: str, restarts: int, code: int = 1, reason: str = "Error", again: bool = False) -> dict[str, Any]:
    """`again`: it runs again. The kubelet's first restart is at once; it waits before the others."""
    terminated = {"exitCode": code, "message": message, "reason": reason}
    state = {"running": {}} if again else {"waiting": {"reason": "CrashLoopBackOff"}}
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
    (ended("the engine was killed", 1, 70, again=True), "", "EngineFailed", False, "killed"),
    (ended("the engine was killed", 1, 70), "", "EngineFailed", True, "killed"),
    (ended("the engine was killed", 2, 70), "", "EngineFailed", True, "killed"),
    (ended("no answer in 3600 s", 2, 75), "", "EngineNotServing", True, "3600"),
    (ended("", 0, 137, "OOMKilled"), "", "OutOfMemory", False, "limits.memory"),
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


def test_of_a_log_the_line_that_names_the_cause_comes_first() -> None:
    log = "\n".join(["INFO a line"] * 200 + ["Traceback (most recent call last):", "OSError: no such file", "bye"])
    found = pod_problem([pod(ended(log, 0))], NOW)
    assert found is not None
    assert found.message.startswith("pod p: OSError: no such file\nINFO a line")
    assert len(found.message) < 1100


def test_what_the_launcher_wrote_first_is_not_said_twice() -> None:
    message = "RuntimeError: no offset; the engine ended\n(EngineCore pid=1) RuntimeError: no offset"
    found = pod_problem([pod(ended(message, 0, 70))], NOW)
    assert found is not None
    assert found.message == f"pod p: {message}"


def test_the_message_about_an_image_is_the_same_between_two_pulls() -> None:
    def text(port: int) -> str:
        return f'failed to pull "x:1": dial tcp 10.0.0.1:{port}->10.0.0.2:443: connection refused'

    pulls = (
        waiting("ErrImagePull", text(40001)),
        waiting("ImagePullBackOff", f'Back-off pulling image "x:1": ErrImagePull: {text(40002)}'),
    )
    found = [pod_problem([pod(status)], NOW) for status in pulls]
    assert found[0] is not None
    assert found[0] == found[1]
    assert "dial tcp 10.0.0.2:443: connection refused" in found[0].message


@pytest.mark.parametrize(
    ("role", "gpus", "message", "advice"),
    [
        (
            "decode",
            0,
            "0/1 nodes are available: 1 Insufficient cpu.",
            "free cpu, or add nodes, or lower spec.decode.resources",
        ),
        ("decode", 1, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "free nvidia.com/gpu, or add nodes"),
        (
            *(
                "prefill",
                1,
                "0/2 nodes: 1 node(s) didn't match Pod's node affinity/selector, 1 had untolerated taint(s)",
            ),
            "check nodeSelector, affinity and tolerations in spec.prefill.accelerator and spec.prefill.template",
        ),
        ("router", 0, "0/1 nodes: 1 node(s) had untolerated taint", "tolerations in spec.router.template"),
    ],
)
def test_advice_for_a_pod_without_a_node_follows_from_what_it_lacks(
    role: str, gpus: int, message: str, advice: str
) -> None:
    view = dataclasses.replace(pod({}), role=role, gpus=gpus, unschedulable=message)
    found = pod_problem([view], NOW)
    assert found is not None
    assert found.message.endswith(advice)
    assert ("gpu" in found.message) is ("gpu" in message)
    assert found.severity is Severity.WARNING
    assert bool(found.rollout_hint) is bool(gpus), "a GPU budget is of no use without GPUs"


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


def test_the_cause_that_the_launcher_found_in_all_lines_is_not_replaced_by_one_of_the_last() -> None:
    later = "(APIServer pid=7) ValueError: the response has begun"
    message = "\n".join(["RuntimeError: no offset; the engine ended with exit code 0 in phase serving", *[later] * 20])
    found = pod_problem([pod(ended(message, 0, 70))], NOW)
    assert found is not None
    assert found.message.startswith("pod p: RuntimeError: no offset; the engine ended")
