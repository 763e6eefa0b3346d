"""Rollouts as trajectories: what each pool gets, step by step, as pods come up and go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_operator.observed import RunningRevision
from phasewise_operator.rollout import DesiredRevision, plan_rollout


def desired(revision: str = "new", fingerprint: str = "kv2", replicas: int = 2, gpus: int = 0) -> list[DesiredRevision]:
    return [DesiredRevision(role, revision, fingerprint, replicas, gpus) for role in ("prefill", "decode")]


def running(role: str, revision: str, fingerprint: str, replicas: int, ready: int) -> RunningRevision:
    return RunningRevision(role, revision, fingerprint, replicas, ready, replicas, 0, served=ready > 0)


def old_pair(ready: int = 2) -> list[RunningRevision]:
    return [running(role, "old", "kv1", 2, ready) for role in ("prefill", "decode")]


def test_nothing_old_gives_what_is_desired() -> None:
    rollout = plan_rollout(desired(), [], None)
    assert rollout.current == {"prefill": 2, "decode": 2}
    assert rollout.old == {}
    assert rollout.reason == ""


def test_a_new_fingerprint_keeps_the_old_pair_until_both_new_pools_are_ready() -> None:
    prefill_only = [*old_pair(), running("prefill", "new", "kv2", 2, 2), running("decode", "new", "kv2", 2, 1)]
    rollout = plan_rollout(desired(), prefill_only, None)
    assert rollout.current == {"prefill": 2, "decode": 2}
    assert rollout.old == {("prefill", "old"): 2, ("decode", "old"): 2}
    assert rollout.reason
    both = [*old_pair(), running("prefill", "new", "kv2", 2, 2), running("decode", "new", "kv2", 2, 2)]
    assert plan_rollout(desired(), both, None).old == {}


@pytest.mark.parametrize(("ready", "kept"), [(0, 2), (1, 1), (2, 0)])
def test_a_kept_fingerprint_replaces_one_pool_replica_by_replica(ready: int, kept: int) -> None:
    want = [DesiredRevision("prefill", "new", "kv1", 2, 0), DesiredRevision("decode", "same", "kv1", 2, 0)]
    now = [
        running("prefill", "old", "kv1", 2, 2),
        running("prefill", "new", "kv1", 2, ready),
        running("decode", "same", "kv1", 2, 2),
    ]
    rollout = plan_rollout(want, now, None)
    assert rollout.old.get(("prefill", "old"), 0) == kept
    assert rollout.current["decode"] == 2


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        (old_pair(), "beside the old, which goes on serving"),
        ([replace(r, served=True) for r in old_pair(ready=0)], "has served and is kept, but is not ready"),
        (old_pair(ready=0), "replaces one that never served"),
    ],
)
def test_the_reason_says_what_the_old_revision_does(old: list[RunningRevision], reason: str) -> None:
    assert reason in plan_rollout(desired(), old, None).reason


def test_an_old_revision_that_never_got_ready_goes_at_once() -> None:
    now = [*old_pair(), running("prefill", "bad", "kv3", 2, 0), running("decode", "bad", "kv3", 2, 0)]
    rollout = plan_rollout(desired(), now, None)
    assert set(rollout.old) == {("prefill", "old"), ("decode", "old")}


def test_a_revert_half_way_makes_the_old_revision_the_desired_one_again() -> None:
    now = [*old_pair(), running("prefill", "new", "kv2", 2, 1), running("decode", "new", "kv2", 2, 0)]
    rollout = plan_rollout(desired("old", "kv1"), now, None)
    assert rollout.current == {"prefill": 2, "decode": 2}
    assert rollout.old == {}


def test_a_budget_that_does_not_hold_both_releases_the_old_first() -> None:
    now = [RunningRevision(role, "old", "kv1", 1, 1, 1, 1, served=True) for role in ("prefill", "decode")]
    want = desired(replicas=1, gpus=1)
    first = plan_rollout(want, now, 2)
    assert first.old == {}
    assert first.current == {"prefill": 0, "decode": 0}, "terminating pods still hold their GPUs"
    one_left = plan_rollout(want, [RunningRevision("decode", "old", "", 0, 0, 1, 1, served=False)], 2)
    assert sum(one_left.current.values()) == 1
    assert plan_rollout(want, now, 4).old != {}, "a budget that holds both surges"


def test_an_old_pod_counts_what_it_holds_itself_not_what_a_new_one_would() -> None:
    now = [RunningRevision(role, "old", "kv1", 1, 1, 1, 4, served=True) for role in ("prefill", "decode")]
    assert plan_rollout(desired(replicas=1, gpus=1), now, 8).old == {}


def test_ready_replicas_of_the_new_revision_stay_while_the_old_drains() -> None:
    left = RunningRevision("decode", "old", "", 0, 0, 1, 2, served=False)
    up = [RunningRevision(role, "new", "kv2", 1, 1, 1, 1, served=True) for role in ("prefill", "decode")]
    assert plan_rollout(desired(replicas=1, gpus=1), [left, *up], 2).current == {"prefill": 1, "decode": 1}


def test_an_old_pool_that_is_unready_for_a_moment_is_kept() -> None:
    """It may be the only one that can serve again."""
    old = [RunningRevision(role, "old", "kv1", 2, 0, 2, 0, served=True) for role in ("prefill", "decode")]
    rollout = plan_rollout(desired(), [*old, running("decode", "new", "kv2", 2, 0)], None)
    assert rollout.old == {("prefill", "old"): 2, ("decode", "old"): 2}


counts = st.integers(0, 4)


@given(replicas=st.integers(1, 4), old_ready=counts, new=st.tuples(counts, counts), same=st.booleans())
def test_never_fewer_ready_than_before_or_desired(
    replicas: int, old_ready: int, new: tuple[int, int], same: bool
) -> None:
    """Whatever is observed, what is kept and what is ready of the new together do not fall short."""
    fingerprint = "kv1" if same else "kv2"
    old_ready = min(old_ready, replicas)
    new_ready = dict(zip(("prefill", "decode"), (min(n, replicas) for n in new), strict=True))
    now = [running(role, "old", "kv1", replicas, old_ready) for role in new_ready]
    now += [running(role, "new", fingerprint, replicas, ready) for role, ready in new_ready.items()]
    rollout = plan_rollout(desired("new", fingerprint, replicas), now, None)
    for role, ready in new_ready.items():
        kept = min(rollout.old.get((role, "old"), 0), old_ready)
        assert kept + ready >= min(replicas, max(old_ready, ready))


@given(budget=st.integers(2, 12), gpus=st.integers(1, 4), old=counts, replicas=st.integers(1, 3))
def test_never_over_the_budget(budget: int, gpus: int, old: int, replicas: int) -> None:
    """What exists and what is asked for together stay within the budget, if the minima fit it at all."""
    if 2 * replicas * gpus > budget or 2 * old * gpus > budget:
        return
    now = [RunningRevision(role, "old", "kv1", old, old, old, gpus, served=True) for role in ("prefill", "decode")]
    rollout = plan_rollout(desired(replicas=replicas, gpus=gpus), now, budget)
    assert (sum(rollout.current.values()) + 2 * old) * gpus <= budget


def gpu(role: str, revision: str, replicas: int, ready: int, pods: int | None = None) -> RunningRevision:
    """One GPU a pod, a fingerprint for each revision."""
    count = replicas if pods is None else pods
    return RunningRevision(role, revision, f"kv-{revision}", replicas, ready, count, 1, served=ready > 0)


@pytest.mark.parametrize(
    ("budget", "asked", "given"),
    [(10, 5, 4), (8, 5, 2), (None, 5, 5)],
    ids=["as far as it fits", "not at all", "without a budget"],
)
def test_a_pool_that_grows_in_mid_rollout_does_not_turn_it_round(budget: int | None, asked: int, given: int) -> None:
    """The old serves until the new can: the new pods may not even have been made yet."""
    now = [
        *(gpu(role, "old", 2, 2) for role in ("prefill", "decode")),
        *(gpu(role, "new", 2, 0, pods=0) for role in ("prefill", "decode")),
    ]
    want = [DesiredRevision("prefill", "new", "kv-new", 2, 1), DesiredRevision("decode", "new", "kv-new", asked, 1)]
    rollout = plan_rollout(want, now, budget)
    assert rollout.current == {"prefill": 2, "decode": given}
    assert rollout.old == {("prefill", "old"): 2, ("decode", "old"): 2}


def test_a_new_revision_smaller_than_the_old_that_cannot_grow_beside_it_lets_the_old_go() -> None:
    """It could never take the old one's traffic while that holds the GPUs."""
    now = [
        *(gpu(role, "old", 2, 2) for role in ("prefill", "decode")),
        *(gpu(role, "new", 1, 1) for role in ("prefill", "decode")),
    ]
    rollout = plan_rollout([DesiredRevision(role, "new", "kv-new", 2, 1) for role in ("prefill", "decode")], now, 7)
    assert rollout.old == {}


def test_replicas_beyond_those_of_the_old_do_not_hold_up_the_end() -> None:
    """The fifth may find no node for as long as the old ones hold theirs."""
    now = [
        *(gpu(role, "old", 4, 4) for role in ("prefill", "decode")),
        *(gpu(role, "new", 5, 4) for role in ("prefill", "decode")),
    ]
    rollout = plan_rollout([DesiredRevision(role, "new", "kv-new", 5, 1) for role in ("prefill", "decode")], now, None)
    assert rollout.old == {}
