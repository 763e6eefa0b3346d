"""What is known of the pods' KV paths, and which of them a canary tries next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from phasewise_runtime.router import kv_paths as kp
from phasewise_runtime.router.kv_evidence import Result, Transfers
from phasewise_runtime.router.kv_registry import PROOF_SECONDS, SUSPECT_SECONDS, KvRegistry
from phasewise_runtime.router.kv_schedule import AT_ONCE, BACKGROUND_SECONDS, Canary, Schedule
from phasewise_runtime.router.pods import Pod

GOOD = Result(bytes=1000.0)
P0, P1 = (Pod(n, n, "prefill", "10.0.0.1", "fp", ready=True) for n in ("p0", "p1"))
D0, D1 = (Pod(n, n, "decode", "10.0.0.2", "fp", ready=True) for n in ("d0", "d1"))


class Known:
    """A registry with its schedule, and how often it said that something changed."""

    def __init__(self, *pods: Pod) -> None:
        self.changes = 0
        self.kv = KvRegistry(self._changed)
        self.schedule = Schedule(self.kv)
        for pod in pods:
            self.kv.put(pod, 0.0)

    def _changed(self) -> None:
        self.changes += 1

    def due(self, now: float) -> list[tuple[str | None, str]]:
        return [(c.prefill and c.prefill.name, c.decode.name) for c in self.begin_all(now)]

    def begin_all(self, now: float) -> list[Canary]:
        begun = list[Canary]()
        while (canary := self.schedule.begin(now)) is not None:
            begun.append(canary)
        return begun

    def end(self, canaries: Iterable[Canary], now: float, result: Result = GOOD) -> None:
        for canary in canaries:
            self.schedule.end(canary)
            self.kv.report_warm(canary.decode, now, answered=True)
            if canary.prefill is not None:
                self.kv.report_canary(canary.prefill, canary.decode, result, now)


def proved(*pods: Pod) -> Known:
    known = Known(*pods)
    for prefill in pods:
        for decode in pods:
            if (prefill.role, decode.role) == ("prefill", "decode"):
                known.end([Canary(decode, prefill)], 0.0)
    return known


# --- what is proved ------------------------------------------------------------------------------------------
def test_a_new_pair_is_proved_by_one_canary() -> None:
    known = Known(P0, D0)
    assert not known.kv.known(P0)[0]
    assert not known.kv.known(D0)[0]
    known.end(known.begin_all(0.0), 1.0)
    assert known.kv.known(P0)[0]
    assert known.kv.known(D0)[0]
    assert known.kv.known(D0)[1] == {"p0"}
    assert known.kv.pods["p0"].bytes == 1000.0
    assert known.due(2.0) == []


def test_a_restarted_engine_is_proved_again_and_one_that_is_not_ready_for_a_moment_is_not() -> None:
    known = proved(P0, replace(D0, container="c1"))
    known.kv.put(replace(D0, container="c1", ready=False), 5.0)
    known.kv.put(replace(D0, container="c1"), 6.0)
    assert known.kv.known(D0)[1] == {"p0"}
    known.kv.put(replace(D0, container="c2"), 7.0)
    assert known.kv.known(D0)[1] == frozenset()
    assert not known.kv.known(P0)[0], "its only peer is a new one"
    assert known.due(7.0) == [("p0", "d0")]


def test_what_is_known_goes_with_the_pod() -> None:
    known = proved(P0, P1, D0)
    known.kv.report_failure(P1, D0, kp.PROMPT_MISMATCH, 1.0)
    known.kv.drop("p1")
    assert known.kv.counts() == {"proved": 1, "unproved": 0, "failed": 0}
    assert list(known.kv.failures()) == []
    assert known.kv.known(D0)[2] == frozenset()
    known.kv.drop("d0")
    assert known.kv.paths == {}


def test_a_decode_pod_whose_paths_all_fail_serves_without_prefill() -> None:
    known = Known(P0, P1, D0)
    known.end(known.begin_all(0.0), 0.1, Result(kp.RECOMPUTED))
    assert not known.kv.known(D0)[0], "there is one more to try"
    known.end(known.begin_all(0.2), 0.3, Result(kp.RECOMPUTED))
    assert known.kv.known(D0)[0]
    assert known.kv.known(D0)[2] == {"p0", "p1"}
    assert {(p.name, d.name, reason) for p, d, reason in known.kv.failures()} == {
        ("p0", "d0", kp.RECOMPUTED),
        ("p1", "d0", kp.RECOMPUTED),
    }


def test_requests_wait_for_the_first_proof_and_not_longer_than_it_takes() -> None:
    known = Known(P0, D0)
    assert known.kv.proof_expected(D0, 1.0) == PROOF_SECONDS - 1.0
    assert known.kv.proof_expected(D0, 100.0) == 0.0
    known.end(known.begin_all(0.0), 2.0)
    assert known.kv.proof_expected(D0, 2.0) == 0.0


def test_a_fault_of_the_prefill_pod_fails_all_its_paths() -> None:
    for tell in (
        lambda kv: kv.report_prefill_failure(P0, kp.KV_PARAMS_MISSING, 1.0),
        lambda kv: kv.report_canary(P0, D0, Result(kp.PREFILL_TIMEOUT), 1.0),
    ):
        known = proved(P0, P1, D0, D1)
        tell(known.kv)
        assert known.kv.known(D0)[1] == known.kv.known(D1)[1] == {"p1"}


def test_a_request_that_succeeds_renews_the_proof_without_waking_anybody() -> None:
    known = proved(P0, D0)
    before = known.changes
    known.kv.report_success(P0, D0, 50.0)
    assert known.kv.pods["p0"].proved_at == 50.0
    assert known.changes == before


def test_paths_are_counted_by_state_in_pairs_that_can_read_each_other() -> None:
    other = [replace(P0, uid="x", fingerprint="other"), replace(D0, uid="y", fingerprint="third")]
    known = proved(P0, P1, D0, D1)
    for pod in (*other, replace(P0, uid="p2"), replace(D0, uid="a", aggregated=True)):
        known.kv.put(pod, 0.0)
    known.kv.report_failure(P0, D0, kp.PROMPT_MISMATCH, 1.0)
    assert known.kv.counts() == {"proved": 3, "unproved": 2, "failed": 1}


# --- suspicion -----------------------------------------------------------------------------------------------
def test_a_path_on_which_a_request_waits_and_that_serves_no_other_is_tried() -> None:
    known = proved(P0, D0)
    with known.kv.waiting(P0, D0, 10.0, lambda: None):
        known.kv.suspect_waits(10.0 + SUSPECT_SECONDS - 0.1)
        assert known.due(13.0) == []
        known.kv.suspect_waits(10.0 + SUSPECT_SECONDS)
        assert known.due(13.0) == [("p0", "d0")]
        known.end([Canary(D0, P0)], 13.2)
        known.kv.suspect_waits(18.0)
        assert known.due(18.0) == [], "a slow request must not keep canaries running"
    known.kv.suspect_waits(100.0)
    assert known.due(100.0) == []


def test_a_path_that_serves_others_meanwhile_is_not_suspected() -> None:
    known = proved(P0, D0)
    with known.kv.waiting(P0, D0, 10.0, lambda: None):
        known.kv.report_success(P0, D0, 12.0)
        known.kv.suspect_waits(14.0)
        assert known.due(14.0) == []


def test_requests_that_wait_on_a_path_end_when_it_fails_and_others_do_not() -> None:
    known, cut = proved(P0, P1, D0), list[str]()
    with (
        known.kv.waiting(P0, D0, 10.0, lambda: cut.append("p0")),
        known.kv.waiting(P1, D0, 10.0, lambda: cut.append("p1")),
    ):
        known.kv.report_canary(P0, D0, Result(kp.TRANSFER_TIMEOUT), 14.0)
        assert cut == ["p0"]


def test_decode_pods_that_compute_prompts_whose_kv_they_got_are_suspected() -> None:
    recomputed = Transfers(bytes=0.0, failed=0.0, external=0.0, computed=300.0)
    for moved, suspected in (
        (recomputed, True),
        (replace(recomputed, computed=None), True),
        (Transfers(bytes=9.0, failed=1.0, external=9.0, computed=0.0), True),
        (replace(recomputed, computed=3.0), False),  # they had the prompts in their prefix cache
        (Transfers(bytes=9.0, failed=0.0, external=9.0, computed=300.0), False),
        (Transfers(), False),
    ):
        known = proved(P0, P1, D0)
        known.kv.report_success(P0, D0, 1.0)
        known.kv.report_transfers(D0, moved)
        assert known.due(9.0) == ([("p0", "d0")] if suspected else []), moved
        known.kv.report_transfers(D0, recomputed)
        assert known.kv.pods["d0"].used == {}, "unused since"


# --- what is tried -------------------------------------------------------------------------------------------
def pool(role: str, n: int) -> list[Pod]:
    return [Pod(f"{role[0]}{i}", f"{role[0]}{i}", role, "10.0.0.1", "fp", ready=True) for i in range(n)]


def test_pods_without_peers_and_for_both_phases_are_warmed_alone() -> None:
    aggregated = replace(D1, fingerprint="agg", aggregated=True)
    known = Known(replace(P0, ready=False), D0, aggregated)
    begun = known.begin_all(0.0)
    assert {(c.prefill, c.decode.name) for c in begun} == {(None, "d0"), (None, "d1")}
    assert not known.kv.known(D0)[0]
    known.end(begun, 1.0)
    assert known.kv.known(D0)[0]
    assert known.due(2.0) == []


def test_an_engine_that_does_not_answer_is_asked_again_after_a_back_off() -> None:
    known = Known(D0)
    (canary,) = known.begin_all(0.0)
    known.schedule.end(canary)
    known.kv.report_warm(D0, 1.0, answered=False)
    assert known.due(1.5) == []
    assert known.due(2.0) == [(None, "d0")]


def test_a_new_pod_is_tried_with_one_that_is_proved() -> None:
    known = proved(P0, D0)
    known.kv.put(P1, 5.0)
    known.kv.put(D1, 5.0)
    assert set(known.due(5.0)) == {("p0", "d1"), ("p1", "d0")}


def test_of_hundreds_of_pods_few_canaries_run_at_once_and_every_path_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasewise_runtime.router.kv_schedule.BACKGROUND_SECONDS", BACKGROUND_SECONDS)
    size = 30
    known = Known(*pool("prefill", size), *pool("decode", size))
    now, rounds = 0.0, 0
    while known.kv.counts()["unproved"]:
        begun = known.begin_all(now)
        assert 0 < len(begun) <= AT_ONCE
        assert len({c.decode.uid for c in begun}) == len(begun), "a decode pod takes one at a time"
        now, rounds = now + 1.01 * BACKGROUND_SECONDS, rounds + 1
        known.end(begun, now)
        if rounds == 8:
            degrees = [len(known.kv.known(p)[1]) for p in pool("prefill", size)]
            assert max(degrees) <= 4, "new pods are spread over their peers"
    assert known.kv.counts()["proved"] == size * size
    assert now > size * (size - 1) * BACKGROUND_SECONDS * 0.9, (
        "the paths of pods that serve already come at a bounded rate"
    )


def test_a_dead_pod_holds_up_one_canary_and_not_those_of_others() -> None:
    known = proved(*pool("prefill", 3), *pool("decode", 20))
    known.kv.report_prefill_failure(pool("prefill", 1)[0], kp.PREFILL_TIMEOUT, 1.0)
    assert len(known.begin_all(30.0)) == 1


def test_a_failed_path_is_tried_again_after_its_back_off() -> None:
    known = proved(P0, D0)
    known.kv.report_failure(P0, D0, kp.PROMPT_MISMATCH, 100.0)
    assert known.due(100.5) == []
    begun = known.begin_all(101.0)
    known.end(begun, 101.2)
    assert known.kv.known(D0)[1] == {"p0"}


def test_pods_that_are_not_ready_are_not_tried() -> None:
    known = proved(P0, D0)
    known.kv.report_failure(P0, D0, kp.PROMPT_MISMATCH, 1.0)
    known.kv.put(replace(P0, ready=False), 2.0)
    assert known.due(60.0) == []


def test_a_decode_pod_that_was_proved_goes_on_alone_while_its_prefill_pod_restarts() -> None:
    known = proved(replace(P0, container="c1"), D0, D1)
    known.kv.put(replace(P0, container="c2"), 7.0)
    assert known.kv.known(D0)[0]
    assert known.kv.known(D1)[0]
    known.end(known.begin_all(7.0)[:1], 8.0)
    assert known.kv.known(D1)[0], "not all requests go to the first one that is proved again"


def test_requests_that_wait_for_kv_of_a_pod_that_is_gone_are_ended() -> None:
    known, ended = proved(P0, D0), list[str]()
    with known.kv.waiting(P0, D0, 1.0, lambda: ended.append("d0")):
        known.kv.drop("p0")
        known.kv.suspect_waits(2.0)
        assert ended == []
        known.kv.suspect_waits(1.0 + SUSPECT_SECONDS)
    assert ended == ["d0"]


def test_a_pod_whose_fingerprint_changes_is_another_one() -> None:
    known = proved(P0, D0)
    known.kv.put(replace(P0, fingerprint="other"), 5.0)
    assert known.kv.peers(D0) == frozenset()
    known.kv.drop("p0")
    assert known.due(6.0) == []
