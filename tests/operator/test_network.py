"""Who may open a connection to which port of a service's pods, by Kubernetes' own rules of NetworkPolicies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.live_objects import observed

from phasewise_operator.leader import metrics_readers
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.render import pod_parts
from phasewise_operator.render.context import Context, Permissions, PodPeer
from phasewise_operator.render.network import NAMESPACE_NAME, network_policies
from phasewise_operator.settings import Settings
from phasewise_runtime import contract

Labels = Mapping[str, str]
Pod = tuple[str, Labels]
"""Namespace and labels."""
OUTSIDE = None
"""A client outside the cluster."""
PORTS = (8000, 8001, 5600, 8080, 8081, 40123)
"""Of the engine, its launcher and the side channel; of the router and its admin port; one that UCX was given."""


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer: Mapping[str, Any], source: Pod | None, namespace: str) -> bool:
    if source is None:
        return False
    where = {NAMESPACE_NAME: source[0]}
    in_namespace = selects(peer["namespaceSelector"], where) if "namespaceSelector" in peer else source[0] == namespace
    return in_namespace and selects(peer["podSelector"], source[1])


def open_ports(ctx: Context, source: Pod | None, target: Labels) -> set[int]:
    """Of PORTS those at which the policies let the source reach a pod of the service's namespace."""
    policies = [p["spec"] for p in network_policies(ctx) if selects(p["spec"]["podSelector"], target)]
    if not policies:
        return set(PORTS)
    rules = [rule for policy in policies for rule in policy["ingress"]]
    passing = [
        rule
        for rule in rules
        # No peers at all are everyone.
        if not rule.get("from") or any(is_peer(peer, source, ctx.namespace) for peer in rule["from"])
    ]
    return {
        port
        for port in PORTS
        for rule in passing
        if port in [p["port"] for p in rule.get("ports", [])] or not rule.get("ports")
    }


def pod(ctx: Context, role: str) -> Pod:
    return ctx.namespace, pod_parts.pod_labels(ctx, role)


OPERATOR: Pod = ("phasewise", {"app.kubernetes.io/name": "phasewise-operator", "pod-template-hash": "1"})
PROMETHEUS: Pod = ("monitoring", {"app": "prometheus"})
STRANGERS: list[Pod | None] = [
    OUTSIDE,
    ("default", {}),
    ("default", {"app": "chat"}),
    ("other", {contract.LABEL_SERVICE: "chat", contract.LABEL_ROLE: contract.ROUTER}),
    ("phasewise", {"app": "other"}),
    ("other", OPERATOR[1]),
]


@pytest.mark.parametrize("role", contract.ENGINE_ROLES)
def test_an_engine_is_reached_by_its_services_routers_and_engines_and_its_metrics_by_readers(
    role: str, make_context: MakeContext
) -> None:
    ctx = make_context()
    target = pod(ctx, role)[1]
    assert open_ports(ctx, pod(ctx, contract.ROUTER), target) == {8000}
    for peer in contract.ENGINE_ROLES:
        assert open_ports(ctx, pod(ctx, peer), target) == set(PORTS)
    for reader in (OPERATOR, PROMETHEUS):
        assert open_ports(ctx, reader, target) == {8001}
    other = make_context("chat-2")
    for stranger in [*STRANGERS, *(pod(other, r) for r in (contract.ROUTER, *contract.ENGINE_ROLES))]:
        assert open_ports(ctx, stranger, target) == set(), stranger


def test_a_router_is_open_to_all_but_for_its_admin_port(make_context: MakeContext) -> None:
    ctx = make_context()
    target = pod(ctx, contract.ROUTER)[1]
    for reader in (OPERATOR, PROMETHEUS):
        assert open_ports(ctx, reader, target) == {8080, 8081}
    for stranger in [*STRANGERS, *(pod(ctx, role) for role in (contract.ROUTER, *contract.ENGINE_ROLES))]:
        assert open_ports(ctx, stranger, target) == {8080}, stranger


def test_without_readers_metrics_are_open_to_nobody(make_context: MakeContext) -> None:
    """A rule with an empty list of peers would be open to everyone."""
    ctx = make_context(permissions=Permissions(metrics_readers=()))
    for role in contract.ENGINE_ROLES:
        assert open_ports(ctx, OPERATOR, pod(ctx, role)[1]) == set()
    assert open_ports(ctx, OPERATOR, pod(ctx, contract.ROUTER)[1]) == {8080}


def test_outgoing_connections_and_other_pods_are_not_touched(make_context: MakeContext) -> None:
    ctx = make_context()
    assert [p["spec"]["policyTypes"] for p in network_policies(ctx)] == [["Ingress"], ["Ingress"]]
    assert open_ports(ctx, OUTSIDE, {"app": "database"}) == set(PORTS)
    assert open_ports(ctx, OUTSIDE, pod(make_context("chat-2"), contract.DECODE)[1]) == set(PORTS)


def test_the_policies_go_where_they_are_switched_off_and_come_back(make_context: MakeContext) -> None:
    ctx = make_context()
    off = make_context(permissions=dataclasses.replace(ctx.permissions, metrics_readers=None))
    running = observed(make_plan(ctx, Observed()), ready=2)
    removed = make_plan(off, running).changes
    assert {(m["kind"], m["metadata"]["name"]) for m in removed.remove} == {
        ("NetworkPolicy", "chat-engine"),
        ("NetworkPolicy", "chat-router"),
    }
    assert removed.write == (), "no pod is restarted by it"
    back = make_plan(ctx, observed(make_plan(off, running), ready=2)).changes
    assert {m["kind"] for m in back.write} == {"NetworkPolicy"}


def test_readers_are_this_operators_pods_and_those_of_the_monitoring_namespace() -> None:
    settings = Settings(namespace="system", pod_labels={"app": "operator"})
    assert metrics_readers(settings) == (PodPeer("system", {"app": "operator"}),)
    watched = dataclasses.replace(settings, monitoring_namespace="prom", monitoring_pod_labels={"app": "p"})
    assert metrics_readers(watched) == (PodPeer("system", {"app": "operator"}), PodPeer("prom", {"app": "p"}))
    assert metrics_readers(dataclasses.replace(watched, network_policy=False)) is None
