"""Rollouts as trajectories: what each pool gets, step by step, as pods come up and go.

What must hold of any rollout (test_rollout_invariants.py) the simulator checks here, too.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.operator.rollout_objects import Version
from tests.operator.rollout_simulator import Cluster

from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import DesiredRevision, Rollout, plan_rollout

PAIR: tuple[str, str] = ("prefill", "decode")


def version(name: str, fingerprint: str = "", gpus: int = 1, good: bool = True) -> Version:
    return Version(dict.fromkeys(PAIR, name), fingerprint or f"kv-{name}", dict.fromkeys(PAIR, gpus), good)


def serving(size: tuple[int, int], budget: int | None = None) -> Cluster:
    """A cluster in which revision a serves."""
    cluster = Cluster(version("a"), dict(zip(PAIR, size, strict=True)))
    cluster.budget = budget
    cluster.settle()
    return cluster


def edit(cluster: Cluster, new: Version, rounds: int = 6) -> None:
    cluster.version = new
    for _ in range(rounds):
        cluster.plan()
        cluster.advance(Random(0), 1.0)


def ready(cluster: Cluster, revision: str) -> tuple[int, ...]:
    found = {role: d.ready for (role, name), d in cluster.deployments.items() if name == revision}
    return tuple(found.get(role, 0) for role in PAIR)


def lowest(cluster: Cluster, new: Version) -> tuple[int, ...]:
    """Fewest ready pods of each role on the way to a new version."""
    fewest = [cluster.serving(role) for role in PAIR]
    for _ in range(200):
        edit(cluster, new, rounds=1)
        fewest = [min(n, cluster.serving(role)) for n, role in zip(fewest, PAIR, strict=True)]
    assert cluster.is_complete()
    return tuple(fewest)


def test_a_first_revision_gets_all_that_is_desired() -> None:
    rollout = plan_rollout([DesiredRevision(role, "a", "kv", 2, 1) for role in PAIR], [], None)
    assert (rollout.current, rollout.old, rollout.reason) == ({"prefill": 2, "decode": 2}, {}, "")


def test_one_new_pair_comes_up_beside_the_old_and_the_rest_when_it_serves() -> None:
    cluster = serving((3, 2))
    cluster.version = version("b")
    first = cluster.plan()
    assert (first.current, first.old) == ({"prefill": 1, "decode": 1}, {("prefill", "a"): 3, ("decode", "a"): 2})
    assert "beside the old, which goes on serving" in first.reason
    edit(cluster, version("b"), rounds=5)
    assert cluster.plan().current == {"prefill": 3, "decode": 2}
    cluster.settle()
    assert ready(cluster, "b") == (3, 2)


def test_new_pods_must_have_been_ready_for_a_while_before_the_old_go() -> None:
    old = [RunningRevision(role, "a", "kv1", 1, 1, 1, 1, served=True) for role in PAIR]
    new = [RunningRevision(role, "b", "kv2", 1, 1, 1, 1, served=False) for role in PAIR]
    want = [DesiredRevision(role, "b", "kv2", 1, 1) for role in PAIR]
    assert len(plan_rollout(want, [*old, *new], None).old) == 2
    assert plan_rollout(want, [*old, *(replace(r, available=1) for r in new)], None).old == {}


def test_new_pods_must_have_handed_kv_over_before_the_old_go_and_the_reason_says_that_they_wait_for_it() -> None:
    old = [RunningRevision(role, "a", "kv1", 2, 2, 2, 1, served=True) for role in PAIR]
    want = [DesiredRevision(role, "b", "kv2", 2, 1) for role in PAIR]

    def step(prefill: int | None, decode: int | None) -> Rollout:
        new = RunningRevision("", "b", "kv2", 2, 2, 2, 1, served=False, available=2)
        proved = dict(zip(PAIR, (prefill, decode), strict=True))
        return plan_rollout(want, [*old, *(replace(new, role=role, proved=n) for role, n in proved.items())], None)

    waiting = step(0, 0)
    assert waiting.old == {(role, "a"): 2 for role in PAIR}
    assert waiting.serving == {(role, "a") for role in PAIR}, "the new revision is not recorded as one that served"
    assert "2 new prefill pods and 2 new decode pods are ready and wait for the routers' proof" in waiting.reason
    half = step(2, 1)
    assert half.old == {(role, "a"): 1 for role in PAIR}
    assert "; 1 new decode pods are ready and wait" in half.reason
    assert step(2, 2).old == step(None, None).old == {}
    assert "proof" not in step(None, None).reason


def test_a_revision_that_never_hands_kv_over_gets_one_pair_and_the_old_goes_on_serving() -> None:
    cluster = serving((3, 2))
    cluster.proving = True
    edit(cluster, replace(version("b"), flows=False), rounds=30)
    assert (ready(cluster, "a"), ready(cluster, "b")) == ((3, 2), (1, 1))
    cluster.version = version("a")
    cluster.settle()
    assert ready(cluster, "a") == (3, 2)


def test_pods_that_have_only_just_become_ready_are_not_given_up_as_if_they_did_not_serve() -> None:
    """A node is full, the decode pods have just come up again, and prefill alone is replaced."""
    decode = RunningRevision("decode", "a", "kv", 2, 2, 2, 1, served=False, available=0)
    old = RunningRevision("prefill", "a", "kv", 1, 1, 1, 1, served=False, available=1)
    new = RunningRevision("prefill", "b", "kv", 1, 0, 1, 1, served=False, unschedulable=1)
    want = [DesiredRevision("prefill", "b", "kv", 1, 1), DesiredRevision("decode", "a", "kv", 2, 1)]
    assert plan_rollout(want, [decode, old, new], None).old == {("prefill", "a"): 1}


def test_an_edit_in_mid_rollout_under_a_budget_of_two_copies_drops_the_attempt_and_keeps_what_serves() -> None:
    cluster = serving((3, 2), budget=10)
    edit(cluster, version("b", good=False), rounds=20)
    assert (ready(cluster, "a"), ready(cluster, "b")) == ((3, 2), (0, 0)), "a bad revision gets one pair and no more"
    cluster.version = version("c")
    cluster.plan()
    assert (ready(cluster, "a"), cluster.deployments.keys() & {("prefill", "b")}) == ((3, 2), set())
    cluster.settle()
    assert ready(cluster, "c") == (3, 2)


@pytest.mark.parametrize("rounds", range(1, 12))
def test_two_edits_in_a_row_end_where_the_nodes_hold_two_copies(rounds: int) -> None:
    """Without a budget: the operator sees only that pods find no node."""
    cluster = serving((3, 2))
    cluster.capacity = 10
    edit(cluster, version("b"), rounds)
    cluster.version = version("c")
    cluster.settle()
    assert cluster.is_complete()


@pytest.mark.parametrize(("budget", "fewest"), [(8, (3, 3)), (9, (4, 4)), (16, (4, 4)), (None, (4, 4))])
def test_a_change_that_keeps_the_fingerprint_lacks_one_pod_at_most(budget: int | None, fewest: tuple[int, int]) -> None:
    cluster = serving((4, 4), budget)
    assert lowest(cluster, version("b", fingerprint="kv-a")) >= fewest


def test_a_large_replica_of_one_pool_takes_the_place_of_as_many_small_ones_of_the_other_as_it_needs() -> None:
    """Else the only prefill pod could not be replaced without a gap."""
    large, small = Version(dict.fromkeys(PAIR, "a"), "kv", {"prefill": 4, "decode": 2}), (1, 5)
    cluster = Cluster(large, dict(zip(PAIR, small, strict=True)))
    cluster.budget = 14
    cluster.settle()
    assert lowest(cluster, replace(large, revisions=dict.fromkeys(PAIR, "b"))) == (1, 3)


@pytest.mark.parametrize("budget", [4, 5, 6, 7, 8])
def test_another_fingerprint_rolls_through_where_one_new_pair_fits_beside_one_old(budget: int) -> None:
    assert min(lowest(serving((2, 2), budget), version("b"))) >= 1


def test_a_full_budget_costs_one_replica_of_each_pool_at_a_time() -> None:
    assert lowest(serving((4, 4), budget=8), version("b")) == (3, 3)


def test_what_was_added_serves_before_more_is_released() -> None:
    cluster = serving((4, 4), budget=8)
    edit(cluster, version("b"), rounds=5)
    for (_, revision), deployment in cluster.deployments.items():
        deployment.good = revision == "a"
    edit(cluster, cluster.version, rounds=30)
    assert ready(cluster, "b") == (1, 1)
    assert sorted(cluster.serving(role) for role in PAIR) == [3, 4], "one pod is missing, and starts"


def test_the_last_pair_is_kept_where_no_other_fits_beside_it_unless_downtime_is_allowed() -> None:
    cluster = serving((1, 1), budget=2)
    edit(cluster, version("b"), rounds=30)
    assert cluster.rollout is not None
    assert "allowDowntime" in cluster.rollout.blocked
    assert ready(cluster, "a") == (1, 1)
    cluster.allow_downtime = True
    cluster.settle()
    assert ready(cluster, "b") == (1, 1)


def test_an_old_pool_that_is_unready_for_a_moment_is_kept_but_for_what_the_new_serves() -> None:
    old = [RunningRevision(role, "a", "kv1", 10, 0, 10, 1, served=True) for role in PAIR]
    new = [RunningRevision(role, "b", "kv2", 10, 1, 10, 1, served=True, available=1) for role in PAIR]
    want = [DesiredRevision(role, "b", "kv2", 10, 1) for role in PAIR]
    assert plan_rollout(want, [*old, *new], None).old == {("prefill", "a"): 9, ("decode", "a"): 9}


@pytest.mark.parametrize(("size", "budget"), [((0, 4), None), ((0, 4), 4), ((0, 4), 5), ((0, 1), 2), ((0, 0), 2)])
def test_a_pool_that_is_to_have_no_replicas_holds_no_rollout_up(size: tuple[int, int], budget: int | None) -> None:
    cluster = serving(size, budget)
    edit(cluster, version("b"))
    cluster.settle()
    assert ready(cluster, "b") == size


def test_beside_a_bad_revision_the_old_one_is_scaled_with_a_pool_at_zero() -> None:
    cluster = serving((0, 2), budget=10)
    edit(cluster, version("b", good=False), rounds=8)
    for size in ((0, 4), (2, 3), (0, 1)):
        cluster.size = dict(zip(PAIR, size, strict=True))
        edit(cluster, cluster.version, rounds=20)
        assert ready(cluster, "a") == size, "scaled beside the attempt"


def test_an_old_pool_at_zero_waits_for_room_in_the_budget() -> None:
    cluster = serving((0, 3), budget=4)
    edit(cluster, version("b", good=False), rounds=8)
    cluster.size = {"prefill": 2, "decode": 2}
    edit(cluster, cluster.version, rounds=8)
    assert ready(cluster, "a") == (0, 2), "one made room for the first new pair"
    cluster.budget = 7
    edit(cluster, cluster.version, rounds=8)
    assert ready(cluster, "a") == (2, 2)


@pytest.mark.parametrize("fingerprint", ["kv-a", "kv-b"])
def test_on_full_nodes_the_last_pair_goes_for_the_new_one_where_downtime_is_allowed(fingerprint: str) -> None:
    cluster = serving((1, 1))
    cluster.capacity, cluster.allow_downtime = 2, True
    edit(cluster, version("b", fingerprint))
    cluster.settle()
    assert ready(cluster, "b") == (1, 1)


def test_a_blocked_rollout_does_not_call_serving_what_is_not_ready() -> None:
    want = [DesiredRevision(role, "b", "kv2", 1, 1) for role in PAIR]
    for pods, beside in ((1, "the last pods that serve"), (0, "has served and is not ready now")):
        old = [RunningRevision(role, "a", "kv1", 1, pods, 1, 1, served=True, available=pods) for role in PAIR]
        assert beside in plan_rollout(want, old, 2).blocked


def test_a_new_pool_that_has_lost_its_partner_makes_room_for_one() -> None:
    """Two new prefill pods alone serve nothing, and the last pair is an old one."""
    old = [RunningRevision(role, "a", "kv1", 1, 1, 1, 2, served=True, available=1) for role in PAIR]
    new = RunningRevision("prefill", "b", "kv2", 2, 2, 2, 4, served=True, available=2)
    want = [DesiredRevision("prefill", "b", "kv2", 2, 4), DesiredRevision("decode", "b", "kv2", 1, 4)]
    rollout = plan_rollout(want, [*old, new], 15)
    assert (rollout.current["prefill"], rollout.blocked, len(rollout.old)) == (1, "", 2)


def test_a_turn_round_half_way_loses_nothing() -> None:
    cluster = serving((3, 2), budget=7)
    edit(cluster, version("b"), rounds=12)
    assert min(ready(cluster, "b")) > 0
    assert min(lowest(cluster, version("a"))) >= 1


def test_pods_that_are_going_hold_their_gpus() -> None:
    """A turn back right after the new revision took over: the old pods still drain."""
    going = [RunningRevision(role, "a", "kv1", 0, 0, 2, 1, served=False, terminating=2) for role in PAIR]
    new = [RunningRevision(role, "b", "kv2", 2, 2, 2, 1, served=True, available=2) for role in PAIR]
    rollout = plan_rollout([DesiredRevision(role, "a", "kv1", 2, 1) for role in PAIR], [*going, *new], 8)
    assert (rollout.current, len(rollout.old)) == ({"prefill": 0, "decode": 0}, 2)


def test_the_old_revision_is_scaled_while_a_bad_one_starts() -> None:
    cluster = serving((2, 2), budget=10)
    edit(cluster, version("b", good=False), rounds=8)
    cluster.size = {"prefill": 3, "decode": 4}
    edit(cluster, cluster.version, rounds=8)
    assert ready(cluster, "a") == (3, 4)


def test_a_budget_that_is_lowered_takes_new_pods_that_do_not_serve_before_old_ones_that_do() -> None:
    cluster = serving((2, 2))
    edit(cluster, version("b", fingerprint="kv-a", good=False), rounds=8)
    cluster.budget = 4
    cluster.plan()
    assert sum(ready(cluster, "a")) == 3, "one old pod makes room for the next step"


@pytest.mark.parametrize(
    ("served", "reason"),
    [(True, "has served and is kept, but is not ready"), (False, "replaces one that never served")],
)
def test_the_reason_says_what_becomes_of_an_old_revision_that_is_not_ready(served: bool, reason: str) -> None:
    old = [RunningRevision(role, "a", "kv1", 1, 0, 1, 1, served) for role in PAIR]
    rollout = plan_rollout([DesiredRevision(role, "b", "kv2", 1, 1) for role in PAIR], old, None)
    assert reason in rollout.reason
    assert bool(rollout.old) is served
