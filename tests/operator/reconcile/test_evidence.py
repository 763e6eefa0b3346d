"""What routers say of KV transfer, read from their pages."""

from __future__ import annotations

from phasewise_operator.reconcile.evidence import RouterPages, parse_pages
from phasewise_operator.reconcile.state import KvEvidence
from phasewise_runtime.router.metrics import Metrics


def page(**pods: int) -> str:
    """As a router exports it."""
    from prometheus_client import generate_latest

    metrics = Metrics()
    for pod, value in pods.items():
        metrics.kv_handover.labels(pod).set(value)
    return generate_latest(metrics.registry).decode()


def test_pods_are_told_apart_and_a_failure_seen_by_one_router_counts() -> None:
    found = parse_pages([page(a=1, b=1), page(b=0, c=0), ""])
    assert found == KvEvidence(frozenset({"a"}), frozenset({"b", "c"}))


def test_no_page_is_no_evidence() -> None:
    assert parse_pages([]) == KvEvidence()


async def test_a_router_that_does_not_answer_says_nothing() -> None:
    assert await RouterPages().read(["127.0.0.1"]) == KvEvidence()
