"""Doors that are closed: who reaches which port of a service's pods, where the cluster enforces NetworkPolicies.

From inside pods, since what comes from a pod's own node (kubelet, and here the API server) is let through by every
network plugin. `nc` of busybox connects and runs `true`; Phasewise's own images have Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, TypeAlias

import pytest

from e2e import cluster, kube, operators
from e2e.cluster.progress import wait_for
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.load import make_request, send_all
from e2e.service import CHAT_NAMESPACE, NAMESPACE, Service, make_namespace
from phasewise_runtime import contract

PORTS: Final = {
    contract.PREFILL: (contract.ENGINE_PORT, contract.LAUNCHER_PORT, contract.NIXL_SIDE_CHANNEL_PORT),
    contract.DECODE: (contract.ENGINE_PORT, contract.LAUNCHER_PORT),
    contract.ROUTER: (contract.ROUTER_PORT, contract.ROUTER_ADMIN_PORT),
}
"""By role: where its pods listen."""
OPEN_TO_ALL: Final = {(contract.ROUTER, contract.ROUTER_PORT)}
POLICIES: Final = ("chat-engine", "chat-router")
SECONDS: Final = 2
"""For a connection. kube-router rejects at once, others drop; one that is let in takes a millisecond."""
PYTHON: Final = f"""
import socket, sys
for end in sys.argv[1:]:
    try:
        socket.create_connection(end.split(":"), timeout={SECONDS}).close()
        print(end)
    except OSError:
        pass
"""
SHELL: Final = f'for end in "$@"; do nc -w {SECONDS} "${{end%:*}}" "${{end#*:}}" -e true && echo "$end"; done; true'

Door: TypeAlias = tuple[str, int]
"""Role and port."""


def doors(chat: Service, besides: str = "") -> dict[str, Door]:
    """Every port of chat's pods, by address and port, but of `besides`: a pod reaches itself in any case."""
    return {
        f"{pod['status']['podIP']}:{port}": (role, port)
        for role, ports in PORTS.items()
        for pod in chat.pods(role)
        if pod["metadata"]["name"] != besides
        for port in ports
    }


def reached(ends: dict[str, Door], namespace: str, target: str, *program: str) -> dict[str, Door]:
    """Those that are open to a pod."""
    found = cluster.kubectl("-n", namespace, "exec", target, "--", *program, *ends).split()
    return {end: ends[end] for end in found}


def behind(ends: dict[str, Door], open_: set[Door]) -> dict[str, Door]:
    """What is expected: the same doors are open at every pod of a role."""
    return {end: door for end, door in ends.items() if door in open_}


def from_python(ends: dict[str, Door], namespace: str, target: str) -> dict[str, Door]:
    return reached(ends, namespace, target, "python3", "-c", PYTHON)


def from_stranger(ends: dict[str, Door], namespace: str) -> dict[str, Door]:
    return reached(ends, namespace, "pod/stranger", "sh", "-c", SHELL, "sh")


@pytest.fixture(scope="module")
def strangers(started_chat: Service) -> Iterator[tuple[str, ...]]:
    """Namespaces with a pod that has no label of ours: chat's own, and another."""
    namespaces = (CHAT_NAMESPACE, NAMESPACE)
    container = {"name": "sh", "image": "phasewise/busybox:dev", "command": ["sleep", "3600"]}
    spec = {"containers": [{**container, "imagePullPolicy": "Never"}], "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": spec}
    for namespace in namespaces:
        make_namespace(namespace)
        kube.apply(json.dumps(pod), namespace)
    for namespace in namespaces:
        wait_for("the stranger's pod", lambda n=namespace: kube.is_ready(kube.get("pod", "stranger", n)), 60)
    yield namespaces
    for namespace in namespaces:
        cluster.kubectl("-n", namespace, "delete", "pod", "stranger", "--wait=false")


def test_strangers_reach_the_routers_api_and_nothing_else(chat: Service, strangers: tuple[str, ...]) -> None:
    ends = doors(chat)
    for namespace in strangers:
        assert from_stranger(ends, namespace) == behind(ends, OPEN_TO_ALL), namespace


def test_routers_reach_engines_and_engines_each_other_and_the_operator_reads_metrics(chat: Service) -> None:
    """Chat has two routers and two prefill pods: one of a role asks the other."""
    router, engine = (chat.pods(role)[0]["metadata"]["name"] for role in (contract.ROUTER, contract.PREFILL))
    ends = doors(chat, besides=router)
    engine_ports = {(role, contract.ENGINE_PORT) for role in contract.ENGINE_ROLES}
    assert from_python(ends, chat.namespace, router) == behind(ends, OPEN_TO_ALL | engine_ports)
    ends = doors(chat, besides=engine)
    all_of_engines = {(role, port) for role in contract.ENGINE_ROLES for port in PORTS[role]}
    assert from_python(ends, chat.namespace, engine) == behind(ends, OPEN_TO_ALL | all_of_engines)
    ends = doors(chat)
    metrics = {(role, contract.LAUNCHER_PORT) for role in contract.ENGINE_ROLES}
    metrics.add((contract.ROUTER, contract.ROUTER_ADMIN_PORT))
    assert from_python(ends, OPERATOR_NAMESPACE, operators.leader()) == behind(ends, OPEN_TO_ALL | metrics)


def test_every_pod_is_scraped_through_the_doors_that_are_open(chat: Service) -> None:
    (outcome,) = send_all(chat.url, [make_request(chat.model, 5, 600, chat=True, stream=True)], 1)
    assert outcome.answer.error is None

    def covered() -> bool:
        samples = operators.metrics()
        labels = (f'namespace="{chat.namespace}"', f'service="{chat.name}"')
        shares = [kube.total(samples, "phasewise_scaling_coverage", *labels, f'role="{role}"') for role in PORTS]
        return shares == [1.0] * len(PORTS)

    wait_for("metrics of every pod of chat", covered, 30)


def test_what_refuses_is_the_policy_and_it_comes_back(chat: Service, strangers: tuple[str, ...]) -> None:
    """While the service is paused, a policy that somebody deletes stays away."""
    ends = doors(chat)
    kube.patch("infsvc", chat.name, {"spec": {"paused": True}}, chat.namespace)
    try:
        wait_for("a paused service", lambda: chat.condition("Reconciling")[1] == "Paused", 20)
        cluster.kubectl("-n", chat.namespace, "delete", "networkpolicy", *POLICIES)
        wait_for("open doors", lambda: from_stranger(ends, NAMESPACE) == ends, 20)
    finally:
        kube.patch("infsvc", chat.name, {"spec": {"paused": False}}, chat.namespace)
    wait_for("closed doors", lambda: from_stranger(ends, NAMESPACE) == behind(ends, OPEN_TO_ALL), 20)
