"""A pool of one on a node that is drained gets its successor first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import DesiredRevision, Rollout, plan_rollout
from phasewise_operator.rollout.turn_back import plan_fallback

DECODE = RunningRevision("decode", "a", "kv", 1, 1, 1, 1, served=True, available=1)
PREFILL = replace(DECODE, role="prefill")


def plan(decode: RunningRevision, budget: int | None = None, size: int = 1, downtime: bool = False) -> Rollout:
    desired = [DesiredRevision("prefill", "a", "kv", 1, 1), DesiredRevision("decode", "a", "kv", size, 1)]
    return plan_rollout(desired, [PREFILL, decode], budget, downtime)


def pods(count: int, ready: int, leaving: int, replicas: int = 1) -> RunningRevision:
    found = replace(DECODE, replicas=replicas, pods=count, ready=ready, available=ready)
    return replace(found, leaving=leaving, leaving_proved=leaving)


@pytest.mark.parametrize(
    ("decode", "replicas"),
    [
        (pods(1, ready=1, leaving=0), 1),
        (pods(1, ready=1, leaving=1), 2),
        (pods(2, ready=1, leaving=1, replicas=2), 2),
        (replace(pods(2, ready=2, leaving=1, replicas=2), available=1), 2),
        (pods(2, ready=2, leaving=1, replicas=2), 1),
        (pods(2, ready=2, leaving=2, replicas=2), 1),
        (replace(pods(2, ready=2, leaving=1, replicas=2), proved=1), 2),
        (replace(pods(2, ready=2, leaving=1, replicas=2), proved=1, leaving_proved=0), 1),
        (pods(1, ready=0, leaving=0), 1),
    ],
    ids=[
        "its node is not drained",
        "its node is drained",
        "the successor starts",
        "the successor has only just become ready",
        "the successor is ready",
        "the successor's node is drained, too",
        "the successor has not handed KV over",
        "the successor hands KV over, and the pod on the bad node does not",
        "a pod that does not serve is evicted",
    ],
)
def test_a_successor_comes_first_and_the_pod_goes_when_it_is_ready(decode: RunningRevision, replicas: int) -> None:
    rollout = plan(decode, budget=3)
    assert (rollout.current["decode"], rollout.blocked) == (replicas, "")
    assert ("drained" in rollout.reason) is (replicas == 2)


def test_where_the_budget_has_no_room_the_drain_waits_and_the_message_says_what_to_do() -> None:
    rollout = plan(pods(1, ready=1, leaving=1), budget=2)
    assert rollout.current["decode"] == 1
    assert all(word in rollout.blocked for word in ("drained", "scaling.gpuBudget", "rollout.allowDowntime"))


def test_a_successor_that_has_come_stays_though_the_budget_is_full() -> None:
    rollout = plan(pods(2, ready=1, leaving=1, replicas=2), budget=3)
    assert (rollout.current["decode"], rollout.blocked) == (2, "")


def test_evictions_move_the_pods_of_larger_pools_and_those_that_may_be_missing_for_a_while() -> None:
    assert plan(pods(2, ready=2, leaving=1, replicas=2), size=2).current["decode"] == 2
    rollout = plan(pods(1, ready=1, leaving=1), budget=2, downtime=True)
    assert (rollout.current["decode"], rollout.blocked, rollout.reason) == (1, "", "")


def test_beside_a_rollout_nothing_is_added() -> None:
    desired = [DesiredRevision("decode", "b", "kv2", 1, 1)]
    old = replace(pods(1, ready=1, leaving=1), aggregated=True)
    assert plan_rollout(desired, [old], 2).old == {("decode", "a"): 1}


@pytest.mark.parametrize(("old_ready", "kept"), [(1, 0), (0, 1)])
def test_a_pod_that_failed_leaves_its_drained_node_when_an_old_one_is_ready(old_ready: int, kept: int) -> None:
    """It stays where the rollout stopped, and nothing may evict it."""
    back = [replace(r, ready=old_ready, available=old_ready) for r in (PREFILL, DECODE)]
    failed = [replace(r, revision="b", fingerprint="kv2", served=False, leaving=1) for r in (PREFILL, DECODE)]
    desired = [DesiredRevision(r.role, "b", "kv2", 1, 1) for r in failed]
    rollout = plan_fallback(desired, back, [*back, *failed], None, keep_failed=True)
    assert rollout.current == {"prefill": kept, "decode": kept}
    assert rollout.old == {("prefill", "a"): 1, ("decode", "a"): 1}
