"""bench/scale counts an operator's calls in the API server's audit log."""

from __future__ import annotations

import json
from typing import Any

from bench.scale.audit import count


def line(verb: str, resource: str, name: str = "", below: str = "") -> str:
    ref: dict[str, Any] = {"resource": resource, "namespace": "default", "name": name}
    return json.dumps({"verb": verb, "objectRef": {**ref, "subresource": below} if below else ref})


def test_writes_are_counted_without_events_and_leases() -> None:
    found = count(
        [
            line("get", "deployments", "chat-router"),
            line("patch", "deployments", "chat-router"),
            line("patch", "inferenceservices", "chat", "status"),
            line("create", "events"),
            line("update", "leases", "phasewise-operator"),
            line("get", "leases", "phasewise-operator"),
        ]
    )
    assert (found.total, found.writes, found.statuses) == (4, 2, 1)


def test_a_child_that_is_written_twice_is_one_child() -> None:
    found = count(
        [
            line("patch", "deployments", "chat-router"),
            line("patch", "deployments", "chat-router"),
            line("patch", "services", "chat-router"),
            line("delete", "roles", "chat-router"),
            line("patch", "inferenceservices", "chat", "status"),
            line("create", "events"),
        ]
    )
    assert (found.children, found.writes) == (3, 5)


def test_writes_of_a_service_and_its_children_can_be_left_out() -> None:
    found = count(
        [
            line("patch", "inferenceservices", "chat-1", "status"),
            line("patch", "deployments", "chat-1-router"),
            line("patch", "deployments", "chat-10-router"),
        ]
    )
    assert found.writes_apart_from("chat-1") == 1


def test_the_most_frequent_calls_come_first() -> None:
    found = count([line("list", "pods"), *[line("patch", "inferenceservices", str(n), "status") for n in range(3)]])
    assert [text.split() for text in found.lines()] == [
        ["3", "patch", "inferenceservices/status"],
        ["1", "list", "pods"],
    ]
