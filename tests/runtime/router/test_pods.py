"""What a router reads from a Pod object; test_render reads it from the pods that the operator renders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phasewise_runtime.contract import ENV_ENGINE_CONFIG, LABEL_FINGERPRINT, LABEL_GPUS, LABEL_ROLE
from phasewise_runtime.router.pods import Pod, pod_from_api


def pod(config: object = None, **labels: str) -> Pod:
    env: list[dict[str, Any]] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    if config is not None:
        env.append({"name": ENV_ENGINE_CONFIG, "value": config})
    given = {LABEL_ROLE: "decode", LABEL_FINGERPRINT: "fp", **{f"phasewise.dev/{k}": v for k, v in labels.items()}}
    raw = {
        "metadata": {"name": "d0", "uid": "u0", "labels": given},
        "spec": {"containers": [{"name": "sidecar"}, {"name": "engine", "env": env}]},
        "status": {
            "containerStatuses": [
                {"name": "sidecar", "containerID": "containerd://s"},
                {"name": "engine", "containerID": "containerd://e"},
            ]
        },
    }
    read = pod_from_api(raw)
    assert read is not None
    return read


def test_name_and_kind_of_its_engine() -> None:
    read = pod(json.dumps({"model_name": "org/a:b$$", "disaggregated": False, "later": 1}))
    assert (read.model, read.aggregated) == ("org/a:b$", True), "Kubernetes puts one dollar in place of two"
    assert not pod(json.dumps({"model_name": "a", "disaggregated": True})).aggregated


@pytest.mark.parametrize(
    "config", [None, "", "no json", "[1]", "null", 5, '{"model_name": 7, "disaggregated": "no"}', "[" * 100_000]
)
def test_a_pod_that_does_not_say_is_asked_as_the_client_asked_and_paired_where_it_can_be(config: object) -> None:
    read = pod(config)
    assert (read.model, read.aggregated) == ("", False)


@pytest.mark.parametrize("label", ["r1", ""])
def test_its_revision(label: str) -> None:
    assert pod(revision=label).revision == label


@pytest.mark.parametrize(
    ("label", "gpus", "size"), [("4", 4, 4), ("0", 0, 1), ("", 0, 1), ("x", 0, 1), ("-1", 0, 1), ("9" * 60, 0, 1)]
)
def test_its_gpus(label: str, gpus: int, size: int) -> None:
    assert LABEL_GPUS == "phasewise.dev/gpus"
    assert (pod(gpus=label).gpus, pod(gpus=label).size) == (gpus, size)


def test_the_container_of_its_engine_which_is_another_one_after_a_restart() -> None:
    assert pod("{}").container == "containerd://e"
    assert pod(None).container == "", "it is not known which container is the engine"
