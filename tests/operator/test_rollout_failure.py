"""Which revisions are bad, and what becomes of their rollouts: each cause by itself, and trajectories to the end."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.operator.rollout_simulator import Cluster
from tests.operator.test_rollout import PAIR, edit, ready, serving, version

from phasewise_operator.observed import Ended, PodView
from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import DesiredRevision
from phasewise_operator.rollout.failure import Cause, Evidence, PodTrouble, RolloutFailure, rollout_failure
from phasewise_operator.rollout.turn_back import fallback
from phasewise_runtime import contract

NOW = "2026-01-01T01:00:00Z"
DEADLINE = 1800.0
OLD = [RunningRevision(role, "a", "kv1", 1, 1, 1, 1, served=True) for role in PAIR]
NEW = [RunningRevision(role, "b", "kv2", 1, 0, 1, 1, served=False) for role in PAIR]
DESIRED = [DesiredRevision(role, "b", "kv2", 1, 1) for role in PAIR]


def minutes_old(minutes: int) -> str:
    return f"2026-01-01T00:{60 - minutes:02}:00Z"


def pod(minutes: int = 1, ready: bool = False, **state: Any) -> PodView:
    return PodView("p", "decode", "b", ready, deleting=False, created=minutes_old(minutes), **state)


OLD_POD = replace(pod(59, ready=True), name="old", revision="a")


def failure(
    *pods: PodView, evidence: Evidence | None = None, new: list[RunningRevision] = NEW, old: list[RunningRevision] = OLD
) -> RolloutFailure | None:
    running = [*old, *new]
    back = fallback(DESIRED, running)
    return rollout_failure(DESIRED, back, running, [OLD_POD, *pods], evidence or Evidence(), DEADLINE, NOW)


def trouble(needs_person: bool) -> Evidence:
    return Evidence({"p": PodTrouble("ImageUnavailable: no\nsuch tag", needs_person)})


CRASHED = Ended(contract.EXIT_ENGINE, "Error", "")
CASES: list[tuple[str, PodView, Evidence, Cause | None]] = [
    ("loads", pod(29), Evidence(), None),
    ("loads for too long", pod(30), Evidence(), Cause.NEVER_READY),
    ("is on its way out", replace(pod(30), deleting=True), Evidence(), None),
    ("is another revision's", replace(pod(30), revision="a"), Evidence(), None),
    ("refuses the spec", pod(ended=Ended(contract.EXIT_CONFIG, "Error", "")), Evidence(), Cause.ENGINE_REFUSED),
    ("refused the spec before", pod(ready=True, ended=Ended(contract.EXIT_CONFIG, "Error", "")), Evidence(), None),
    ("crashed four times", pod(ended=CRASHED, restarts=4), trouble(needs_person=True), None),
    ("crashed five times", pod(ended=CRASHED, restarts=5), Evidence(), Cause.PODS_CRASH),
    ("serves after five crashes", pod(ready=True, ended=CRASHED, restarts=5), Evidence(), None),
    ("has no image yet", pod(4), trouble(needs_person=True), None),
    ("has no image for long", pod(5), trouble(needs_person=True), Cause.PODS_CANNOT_START),
    ("waits for a node", pod(5), trouble(needs_person=False), None),
    ("hands no KV over", pod(ready=True), Evidence(kv_fails={"p": "no KV"}), Cause.KV_TRANSFER_FAILS),
    ("hands no KV over, not ready", pod(), Evidence(kv_fails={"p": "no KV"}), None),
    ("is slower", pod(ready=True), Evidence(slower={("decode", "b"): "by far"}), Cause.SLOWER_THAN_OLD),
    ("is faster", pod(ready=True), Evidence(slower={("decode", "a"): "by far"}), None),
]


@pytest.mark.parametrize(("what", "seen", "evidence", "cause"), CASES, ids=[case[0] for case in CASES])
def test_a_revision_fails_by_what_its_pod_does(
    what: str, seen: PodView, evidence: Evidence, cause: Cause | None
) -> None:
    found = failure(seen, evidence=evidence)
    assert (found.cause if found else None) is cause, what


def test_a_failure_says_when_of_what_and_why_and_is_read_back_as_it_was() -> None:
    found = failure(pod(30), evidence=trouble(needs_person=False))
    assert found is not None
    assert (found.since, found.revision) == (NOW, "b-b")
    assert found.text == "decode: no pod was ready 1800 s after it was made; ImageUnavailable: no such tag"
    assert RolloutFailure.of_note(found.to_note()) == found
    assert RolloutFailure.of_note("") is RolloutFailure.of_note("yesterday Bad a-b text") is None


@pytest.mark.parametrize("of", [{"served": True}, {"ready": 1}])
def test_a_revision_that_was_ready_is_not_one_that_never_was(of: dict[str, Any]) -> None:
    assert failure(pod(59), new=[replace(r, **of) for r in NEW]) is None


def test_where_the_old_revision_hands_no_kv_over_either_it_is_not_the_new_ones_fault() -> None:
    fails = {"p": "no KV", "old": "no KV"}
    assert failure(pod(ready=True), evidence=Evidence(kv_fails=fails)) is None
    other = replace(OLD_POD, name="other")
    assert failure(pod(ready=True), other, evidence=Evidence(kv_fails=fails)) is not None, "one of the old does"


def test_one_pod_without_kv_of_several_may_be_on_a_bad_node() -> None:
    bad = Evidence(kv_fails={"p": "no KV"})
    assert failure(pod(ready=True), replace(pod(ready=True), name="q"), evidence=bad) is None


@pytest.mark.parametrize("bad", [pod(ended=CRASHED, restarts=5), pod(5)], ids=["crashes", "has no image"])
def test_one_pod_of_several_that_does_not_come_up_may_be_on_a_bad_node(bad: PodView) -> None:
    assert failure(bad, evidence=trouble(needs_person=True)) is not None
    assert failure(bad, replace(pod(ready=True), name="q"), evidence=trouble(needs_person=True)) is None


def test_without_an_old_revision_that_served_nothing_fails() -> None:
    assert failure(pod(30), old=[]) is None
    assert failure(pod(30), old=[replace(r, served=False) for r in OLD]) is None
    assert failure(pod(30), old=[replace(r, replicas=0) for r in OLD]) is None
    assert failure(pod(30), old=OLD[:1]) is None, "half of one can serve nothing"


def test_a_pool_at_zero_that_was_turned_back_to_is_still_there_to_go_on_with() -> None:
    assert fallback(DESIRED, [replace(r, replicas=0, ready=0, planned=True) for r in OLD])


def test_beside_a_prefill_pool_at_zero_a_decode_pool_that_served_is_there_to_go_on_with() -> None:
    desired = [replace(d, replicas=int(d.role == "decode")) for d in DESIRED]
    prefill, decode = replace(OLD[0], replicas=0, ready=0, served=False), OLD[1]
    assert {r.revision for r in fallback(desired, [prefill, decode, *NEW])} == {"a"}
    assert not fallback(desired, [prefill, replace(decode, served=False), *NEW])


def test_of_several_old_revisions_the_one_that_serves_goes_on() -> None:
    other = [replace(r, revision="c", fingerprint="kv3", ready=0) for r in OLD]
    assert {r.revision for r in fallback(DESIRED, [*other, *OLD])} == {"a"}


def test_a_pool_whose_old_pods_are_gone_goes_on_with_the_new() -> None:
    """prefill and decode were changed, KV-compatibly, and decode has been replaced already."""
    new = [replace(r, fingerprint="kv1") for r in NEW]
    want = [replace(d, fingerprint="kv1") for d in DESIRED]
    back = fallback(want, [OLD[0], *new])
    assert [(r.role, r.revision) for r in back] == [("prefill", "a"), ("decode", "b")]
    found = rollout_failure(want, back, [OLD[0], *new], [pod(30)], Evidence(), DEADLINE, NOW)
    assert found is None, "decode b is all that there is"


# --- trajectories ------------------------------------------------------------------------------------------


def failing(size: tuple[int, int], budget: int | None, *, roll_back: bool, fingerprint: str, good: bool) -> Cluster:
    """A rollout that is found to be bad half-way."""
    cluster = serving(size, budget)
    for _ in range(9):
        if min(ready(cluster, "b")) == 0:
            edit(cluster, version("b", fingerprint, good=good), rounds=1)
    cluster.roll_back, cluster.condemned = roll_back, True
    cluster.plan()
    cluster.condemned = False
    return cluster


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("fingerprint", ["kv-a", "kv-b"])
@pytest.mark.parametrize("budget", [None, 6, 8, 12])
def test_turned_back_the_old_has_its_size_and_nothing_is_left_of_the_new(
    budget: int | None, fingerprint: str, good: bool
) -> None:
    cluster = failing((3, 3), budget, roll_back=True, fingerprint=fingerprint, good=good)
    lowest = cluster.service()
    for _ in range(40):
        cluster.plan()
        cluster.advance(Random(0), 1.0)
        lowest = min(lowest, cluster.service())
    assert ready(cluster, "a") == (3, 3)
    assert cluster.pod_gpus() == 6
    assert lowest >= 1
    cluster.size = {"prefill": 2, "decode": 4 if budget is None else 3}
    cluster.settle()
    assert ready(cluster, "a") == tuple(cluster.size.values()), "scaling goes on"


@pytest.mark.parametrize("fingerprint", ["kv-a", "kv-b"])
def test_stopped_the_new_gets_no_more_and_the_old_goes_on(fingerprint: str) -> None:
    cluster = failing((4, 4), 12, roll_back=False, fingerprint=fingerprint, good=True)
    new = ready(cluster, "b")
    assert min(new) >= 1
    cluster.settle()
    assert (ready(cluster, "a"), ready(cluster, "b")) == ((4, 4), new), "nothing more is taken over"
    cluster.size = {"prefill": 5, "decode": 5}
    cluster.settle()
    assert [sum(n) for n in zip(ready(cluster, "a"), ready(cluster, "b"), strict=True)] >= [5, 5]
    assert ready(cluster, "b") == new
    cluster.size = {"prefill": 1, "decode": 1}
    cluster.settle()
    assert (ready(cluster, "a"), ready(cluster, "b")) == ((1, 1), (1, 1)), "no more than the pool is to have"


@pytest.mark.parametrize(("old_is_ready", "left"), [(True, 0), (False, 2)])
def test_stopped_pods_that_serve_go_only_for_old_ones_that_do(old_is_ready: bool, left: int) -> None:
    cluster = failing((4, 4), 12, roll_back=False, fingerprint="kv-a", good=True)
    assert (ready(cluster, "a"), ready(cluster, "b")) == ((4, 4), (2, 2))
    for key, deployment in cluster.deployments.items():
        for one in deployment.pods:
            one.ready = old_is_ready or key[1] == "b"
    cluster.budget = 8
    cluster.plan()
    assert ready(cluster, "b") == (left, left)


@pytest.mark.parametrize(("budget", "left"), [(10, 2), (8, 0)])
def test_stopped_pods_that_do_not_serve_stay_while_nobody_needs_their_gpus(budget: int, left: int) -> None:
    """Somebody may want to read their logs."""
    cluster = failing((4, 4), budget, roll_back=False, fingerprint="kv-b", good=False)
    cluster.settle()
    assert ready(cluster, "a") == (4, 4)
    assert cluster.pod_gpus() == 8 + left


def test_what_failed_is_not_tried_again_until_its_mark_is_gone() -> None:
    cluster = failing((2, 2), None, roll_back=True, fingerprint="kv-b", good=True)
    cluster.settle()
    assert (ready(cluster, "a"), ready(cluster, "b")) == ((2, 2), (0, 0))
    cluster.deployments["prefill", "b"].failed = ""
    cluster.settle()
    assert ready(cluster, "b") == (2, 2)


def test_another_edit_removes_what_failed() -> None:
    cluster = failing((2, 2), None, roll_back=True, fingerprint="kv-b", good=False)
    cluster.settle()
    cluster.version = version("a")
    cluster.settle()
    assert {revision for _, revision in cluster.deployments} == {"a"}
