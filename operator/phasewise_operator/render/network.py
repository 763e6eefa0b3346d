"""NetworkPolicies of a service: who may open a connection to its engines and routers. Pure.

Engines answer anyone who reaches them: these policies, and not a key, stand between them and the rest of the cluster.
They select pods by service and role alone: labels that every pod of every version has, also one that terminates.
Outgoing connections are left as they are. docs/networking.md says what is open to whom, and what it does not cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from phasewise_operator.kinds import NETWORK_POLICY, Manifest
from phasewise_operator.render.context import Context, PodPeer, role_labels, selector
from phasewise_runtime import contract

NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The API server sets this label on every namespace."""


def network_policies(ctx: Context) -> list[Manifest]:
    """One for the engines of both roles, one for the routers; none where the operator is set to make none."""
    if ctx.permissions.metrics_readers is None:
        return []
    routers = {"matchLabels": selector(ctx, contract.ROUTER)}
    readers = [_peer(peer) for peer in ctx.permissions.metrics_readers]
    to_engines = [
        _allow(contract.ENGINE_PORT, [{"podSelector": routers}]),
        # At any port: beside the side channel, UCX listens at ports that the kernel chooses.
        {"from": [{"podSelector": _engines(ctx)}]},
        *([_allow(contract.LAUNCHER_PORT, readers)] if readers else []),
    ]
    to_routers = [
        _allow(contract.ROUTER_PORT),
        *([_allow(contract.ROUTER_ADMIN_PORT, readers)] if readers else []),
    ]
    return [
        NETWORK_POLICY.manifest(ctx.child_name("engine"), spec=_spec(_engines(ctx), to_engines)),
        NETWORK_POLICY.manifest(
            ctx.child_name(contract.ROUTER), role_labels(contract.ROUTER), spec=_spec(routers, to_routers)
        ),
    ]


def _engines(ctx: Context) -> dict[str, Any]:
    roles = {"key": contract.LABEL_ROLE, "operator": "In", "values": list(contract.ENGINE_ROLES)}
    return {"matchLabels": {contract.LABEL_SERVICE: ctx.name}, "matchExpressions": [roles]}


def _spec(pods: dict[str, Any], ingress: list[dict[str, Any]]) -> dict[str, Any]:
    return {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}


def _allow(port: int, peers: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Without `peers` to everyone, also from outside the cluster. Kubernetes takes an empty list for the same."""
    sources = {} if peers is None else {"from": list(peers)}
    return {**sources, "ports": [{"port": port, "protocol": "TCP"}]}


def _peer(peer: PodPeer) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: peer.namespace}},
        "podSelector": {"matchLabels": dict(peer.labels)} if peer.labels else {},
    }
