"""What a former revision is worth whose pods never handed KV over."""

from __future__ import annotations

import pytest
from tests.operator.test_rollout import PAIR

from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import DesiredRevision, plan_rollout


def pair(revision: str, count: int, ready: int, proved: int, served: bool) -> list[RunningRevision]:
    return [
        RunningRevision(role, revision, f"kv-{revision}", count, ready, count, 1, served, ready, proved=proved)
        for role in PAIR
    ]


def desired(revision: str, size: int) -> list[DesiredRevision]:
    return [DesiredRevision(role, revision, f"kv-{revision}", size, 1) for role in PAIR]


@pytest.mark.parametrize("size", [1, 2])
def test_one_that_served_and_is_unready_for_a_moment_stays_beside_one_that_never_served(size: int) -> None:
    served, attempt = pair("v1", size, 0, 0, served=True), pair("v2", 1, 1, 0, served=False)
    old = plan_rollout(desired("v3", size), [*served, *attempt], None).old
    assert {key: n for key, n in old.items() if key[1] == "v1"} == {(role, "v1"): size for role in PAIR}
    assert all(n <= 1 for (_, revision), n in old.items() if revision == "v2"), "what never served does not grow"


@pytest.mark.parametrize(("proved", "recorded"), [(0, {"v1"}), (1, {"v1", "v2"})])
def test_only_one_whose_pods_hand_kv_over_is_recorded_as_one_that_served(proved: int, recorded: set[str]) -> None:
    running = [*pair("v1", 1, 1, 1, served=True), *pair("v2", 1, 1, proved, served=False)]
    assert {revision for _, revision in plan_rollout(desired("v3", 1), running, None).serving} == recorded
