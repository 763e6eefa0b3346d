"""What speaks against a revision, and only if it lasts."""

from __future__ import annotations

import pytest
from tests.operator.scaling.signals.exposition import Router
from tests.operator.scaling.signals.service import D, P, Service

from phasewise_operator.scaling.signals.evidence import Evidence, slower_revisions
from phasewise_operator.scaling.types import Outcomes


def outcomes(met: int, ttft: int = 0, itl: int = 0, failed: int = 0) -> Outcomes:
    return Outcomes(met=met, ttft_missed=ttft, itl_missed=itl, failed=failed)


GOOD = outcomes(95, ttft=3, itl=2)
CASES = [
    ("as good", P, outcomes(90, ttft=10), GOOD, False),
    ("late first tokens", P, outcomes(60, ttft=40), GOOD, True),
    ("late first tokens of decode", D, outcomes(60, ttft=40), GOOD, True),
    ("slow tokens are not prefill's", P, outcomes(60, itl=40), GOOD, False),
    ("slow tokens", D, outcomes(60, itl=40), GOOD, True),
    ("failures", P, outcomes(60, failed=40), GOOD, True),
    ("too few of it", P, outcomes(0, ttft=19), GOOD, False),
    ("too few of the old", P, outcomes(0, ttft=100), outcomes(19), False),
    ("all of twenty", P, outcomes(0, ttft=20), outcomes(20), True),
    ("few, where all vary much", P, outcomes(9, ttft=11), outcomes(15, ttft=5), False),
    ("many, where all vary much", P, outcomes(180, ttft=220), outcomes(300, ttft=100), True),
    ("clearly, but by little", P, outcomes(850, ttft=150), outcomes(1000), False),
]  # fmt: skip


@pytest.mark.parametrize(("what", "role", "new", "old", "slower"), CASES, ids=[c[0] for c in CASES])
def test_a_revision_is_slower_by_a_margin_that_is_no_accident(
    what: str, role: str, new: Outcomes, old: Outcomes, slower: bool
) -> None:
    found = slower_revisions({(role, "new"): new, (role, "old"): old})
    assert (found.keys() == {(role, "new")}) is slower, what
    assert slower or not found


def test_pools_are_not_compared_with_each_other() -> None:
    assert slower_revisions({(P, "a"): outcomes(0, ttft=100), (D, "b"): GOOD}) == {}


def test_only_what_lasts_counts() -> None:
    bad = {(P, "new"): outcomes(10, ttft=30), (P, "old"): GOOD}
    evidence = Evidence().fold({"p"}, bad, 100.0)
    assert (evidence.kv_fails, evidence.slower) == ({}, {})
    evidence = evidence.fold({"p"}, bad, 159.0)
    assert (evidence.kv_fails, evidence.slower) == ({}, {})
    lasting = evidence.fold({"p"}, bad, 160.0)
    assert "p" in lasting.kv_fails["p"]
    assert lasting.slower == {
        (P, "new"): "it met its targets in 25% of 40 requests, and the old revision old in 97% of 100"
    }
    after_a_pause = evidence.fold(set(), {}, 162.0).fold({"p"}, bad, 164.0)
    assert (after_a_pause.kv_fails, after_a_pause.slower) == ({}, {})


def test_results_by_revision_are_summed_over_the_routers(service: Service, router: Router) -> None:
    service.round()
    router.by_revision.labels(P, "a", "met").inc(3)
    router.by_revision.labels(P, "b", "ttft_missed").inc(2)
    router.by_revision.labels(D, "a", "met").inc(5)
    service.round()
    found = service.signals().revisions
    assert found == {(P, "a"): outcomes(3), (P, "b"): outcomes(0, ttft=2), (D, "a"): outcomes(5)}
