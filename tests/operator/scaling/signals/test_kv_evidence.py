"""What the routers of a service say together of KV transfer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from tests.operator.scaling.signals.exposition import Engine, Router
from tests.operator.scaling.signals.service import D, P, R, Service, pod

from phasewise_operator.scaling.signals.history import ScrapeTarget
from phasewise_operator.scaling.signals.kv_evidence import (
    NO_EVIDENCE,
    FailedPath,
    KvEvidence,
    PodProof,
    kv_evidence,
)
from phasewise_operator.scaling.types import Coverage

R1, R2, P1, D1 = pod(R, "r1"), pod(R, "r2"), pod(P, "p1"), pod(D, "d1")


@dataclass
class Rounds:
    """A pair of engines behind two routers, scraped round after round."""

    service: Service = field(default_factory=lambda: Service({R1: Router(), R2: Router(), P1: Engine(), D1: Engine()}))
    known: KvEvidence = NO_EVIDENCE

    def router(self, target: ScrapeTarget) -> Router:
        found = self.service.pods[target]
        assert isinstance(found, Router)
        return found

    def restart(self, target: ScrapeTarget) -> Router:
        """Its container: the pod stays, and what it counted is gone."""
        self.service.pods[target] = Router()
        return self.router(target)

    def round(self, patient: bool = True) -> KvEvidence:
        self.service.round()
        self.known = kv_evidence(self.service.history, list(self.service.pods), self.known, patient)
        return self.known


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


def test_the_evidence_of_a_pod_is_its_last_proof_and_what_its_canary_moved(rounds: Rounds) -> None:
    for target, at in ((R1, 1000.0), (R2, 2000.0)):
        router = rounds.router(target)
        router.tries_kv(proved=1, p1=True, d1=True)
        router.kv_proved_at.labels("p1").set(at)
        router.kv_bytes.labels("p1").set(12288)
    found = rounds.round()
    assert found.pods == {"p1": PodProof(True, 2000.0, 12288), "d1": PodProof(True)}
    assert (found.proved_paths, found.paths, found.failed) == (1, 1, ())
    assert (found.proved, found.routers) == (frozenset({"p1", "d1"}), Coverage(2, 2))


def test_where_routers_disagree_a_failure_counts(rounds: Rounds) -> None:
    rounds.router(R1).tries_kv(proved=1, p1=True, d1=True)
    other = rounds.router(R2)
    other.tries_kv(failed=1, p1=False, d1=False)
    other.kv_failed.labels("p1", "d1", "kv_not_loaded").set(1)
    found = rounds.round()
    assert (found.proved, found.failed) == (frozenset(), (FailedPath("p1", "d1", "kv_not_loaded"),))
    assert (found.proved_paths, found.paths) == (0, 1)


def test_a_router_that_has_tried_a_pod_speaks_for_one_that_has_not(rounds: Rounds) -> None:
    rounds.router(R1).tries_kv(proved=1, p1=True, d1=True)
    rounds.router(R2).tries_kv(unproved=1)
    assert rounds.round().proved == {"p1", "d1"}
    assert (rounds.known.proved_paths, rounds.known.paths) == (1, 1)


def test_a_path_that_two_routers_see_fail_for_two_reasons_is_one_path(rounds: Rounds) -> None:
    for target, reason in ((R1, "transfer_timeout"), (R2, "recomputed")):
        rounds.router(target).tries_kv(failed=1, p1=False, d1=False)
        rounds.router(target).kv_failed.labels("p1", "d1", reason).set(1)
    assert rounds.round().failed == (FailedPath("p1", "d1", "recomputed"),)


def test_a_path_that_a_router_has_tried_again_with_success_is_not_failed_any_more(rounds: Rounds) -> None:
    router = rounds.router(R1)
    router.tries_kv(failed=1, p1=False, d1=False)
    router.kv_failed.labels("p1", "d1", "transfer_timeout").set(1)
    assert rounds.round().failed
    router.tries_kv(proved=1, p1=True, d1=True)
    router.kv_failed.labels("p1", "d1", "transfer_timeout").set(0)
    assert (rounds.round().failed, rounds.known.proved) == ((), {"p1", "d1"})


# --- what is not known ---------------------------------------------------------------------------------------------


def test_before_a_router_was_read_no_pod_is_proved_and_none_is_known_to_need_no_proof(rounds: Rounds) -> None:
    rounds.service.silent = {R1, R2}
    assert (rounds.round().proving, rounds.known.proved) == (None, frozenset())
    assert (NO_EVIDENCE.proving, NO_EVIDENCE.proved) == (None, frozenset())


def test_routers_of_a_version_that_proves_nothing_leave_readiness_to_do(rounds: Rounds) -> None:
    rounds.router(R1).kv_transfer.labels("p1").set(1)
    assert (rounds.round().proving, rounds.known.proved) == (False, None)
    rounds.router(R2).tries_kv(unproved=1)
    assert (rounds.round().proving, rounds.known.proved) == (True, {"p1"}), "the first router of the new version"


def test_a_router_that_does_not_answer_is_not_one_that_proves_nothing(rounds: Rounds) -> None:
    rounds.service.silent = {R2}
    assert rounds.round().proving is None, "the other router may prove pods"
    rounds.service.silent = set()
    assert rounds.round().proving is False


def test_a_scrape_that_fails_takes_no_proof_away(rounds: Rounds) -> None:
    for target in (R1, R2):
        rounds.router(target).tries_kv(proved=1, p1=True, d1=True)
    before = rounds.round()
    rounds.service.silent = {R1, R2}
    for _ in range(20):
        assert rounds.round() == before


def test_routers_that_begin_anew_take_no_proof_and_no_failure_away_before_they_have_tried(rounds: Rounds) -> None:
    rounds.service.pods[pod(P, "p2")] = Engine()
    for target in (R1, R2):
        rounds.router(target).tries_kv(proved=1, failed=1, p1=True, d1=True, p2=False)
        rounds.router(target).kv_failed.labels("p2", "d1", "transfer_timeout").set(1)
    before = rounds.round()
    for target in (R1, R2):
        rounds.restart(target).tries_kv(unproved=2)
    assert (rounds.round().pods, rounds.known.failed) == (before.pods, before.failed)
    rounds.router(R1).tries_kv(proved=2, p1=True, d1=True, p2=True)
    assert (rounds.round().failed, rounds.known.proved) == ((), {"p1", "p2", "d1"})


def test_what_was_known_of_a_pod_ends_with_it(rounds: Rounds) -> None:
    rounds.router(R1).tries_kv(proved=1, p1=True, d1=True)
    rounds.round()
    rounds.restart(R1).tries_kv(unproved=1)
    del rounds.service.pods[P1]
    assert set(rounds.round().pods) == {"d1"}


def test_a_router_on_its_way_out_is_not_asked(rounds: Rounds) -> None:
    """It tries nothing any more: what it saw fail may work since."""
    rounds.router(R1).tries_kv(failed=1, p1=False, d1=False)
    rounds.router(R2).tries_kv(proved=1, p1=True, d1=True)
    rounds.service.round()
    expected = [target for target in rounds.service.pods if target != R1]
    assert kv_evidence(rounds.service.history, expected).proved == {"p1", "d1"}


def test_routers_that_cannot_be_read_for_long_are_taken_to_prove_nothing_until_one_says_that_it_does(
    rounds: Rounds,
) -> None:
    rounds.service.silent = {R1, R2}
    assert rounds.round(patient=False).proved is None
    assert rounds.round(patient=True).proved is None
    rounds.service.silent = set()
    rounds.router(R1).tries_kv(unproved=1)
    assert rounds.round().proved == frozenset()
    rounds.service.silent = {R1, R2}
    assert rounds.round(patient=False).proved == frozenset(), "these prove pods, and may do so at this moment"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e18])
def test_values_that_no_router_means_are_left_out(value: float, rounds: Rounds) -> None:
    router = rounds.router(R1)
    router.tries_kv(proved=1, p1=True)
    for gauge in (router.kv_proved_at, router.kv_bytes, router.kv_transfer):
        gauge.labels("d1").set(value)
    router.kv_proved_at.labels("p1").set(value)
    router.kv_paths.labels("unproved").set(value)
    found = rounds.round()
    assert (found.pods, found.paths) == ({"p1": PodProof(True)}, 1)


# --- what is looked at without traffic ------------------------------------------------------------------------------


def test_a_proof_is_awaited_while_a_pod_of_a_pair_has_none_or_a_path_fails(rounds: Rounds) -> None:
    def awaits() -> bool:
        return rounds.round().awaits_proof(list(rounds.service.pods))

    router = rounds.router(R1)
    assert not awaits(), "these routers prove nothing"
    router.tries_kv(unproved=1)
    assert awaits()
    router.tries_kv(failed=1, p1=False, d1=False)
    assert awaits()
    router.tries_kv(proved=1, p1=True, d1=True)
    assert not awaits()
    router.kv_failed.labels("p1", "d9", "transfer_timeout").set(1)
    assert awaits()
    router.kv_failed.labels("p1", "d9", "transfer_timeout").set(0)
    rounds.service.pods[pod(D, "d2")] = Engine()
    assert awaits()
    del rounds.service.pods[P1]
    assert not awaits(), "there is nobody to hand KV over"


def test_time_and_use_of_paths_are_no_other_judgement(rounds: Rounds) -> None:
    router = rounds.router(R1)
    router.tries_kv(proved=1, unproved=3, p1=True, d1=True)
    before = rounds.round().judgement
    router.kv_proved_at.labels("p1").set(1000)
    router.tries_kv(proved=4, p1=True, d1=True)
    assert rounds.round().judgement == before
    router.tries_kv(proved=3, failed=1, p1=True, d1=False)
    assert rounds.round().judgement != before
