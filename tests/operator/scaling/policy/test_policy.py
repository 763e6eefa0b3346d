"""The decision, case by case: what is held, what grows, what shrinks, and the reason that people read."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.operator.scaling.policy.signal_factory import Service, busy, make_signals, pods, pool

from phasewise_operator.scaling.types import Coverage, Signals


@pytest.mark.parametrize(
    ("signals", "age", "reason", "words"),
    [
        (None, 0, "NoSignal", "nothing has been read"),
        (busy(4, 4, rate=50), 11, "Stale", "older than 10 s"),
        (busy(4, 4, rate=50, load_window=0.0), 0, "NoSignal", "watched"),
        (busy(4, 4, rate=50, routers=Coverage(1, 2)), 0, "Unreadable", "1 of 2 routers cannot be scraped"),
        (busy(4, 4, rate=50, load_window=0.0, routers=Coverage(1, 2)), 0, "NoSignal", "watched"),
        (busy(4, 4, rate=50, routers=Coverage(0, 0)), 0, "NoRouter", "no router is ready"),
        (
            make_signals({"prefill": pods("prefill", 2, read=1), "decode": pods("decode", 4)}, arrivals=50.0),
            0,
            "Unreadable",
            "1 of 2 prefill pods cannot be scraped",
        ),
        (make_signals({"prefill": pods("prefill", 4)}), 0, "Unreadable", "4 of 4 decode pods cannot be scraped"),
    ],
)
def test_unknown_load_changes_no_size(signals: Signals | None, age: float, reason: str, words: str) -> None:
    service = Service(pool("prefill", 4), pool("decode", 4), stabilization=0)
    for _ in range(20):
        decisions = service.tick(signals, age=age)
        assert service.sizes == (4, 4)
        for decision in decisions.values():
            assert not decision.sufficient
            assert decision.reason == reason
            assert words in decision.message


def test_a_change_of_bounds_is_no_guess() -> None:
    service = Service(pool("prefill", 4, max=3), pool("decode", 4, min=6))
    service.tick(None)
    assert service.sizes == (3, 6)


def test_part_of_the_pods_is_taken_for_all_and_nothing_shrinks() -> None:
    complete, part = (Service(pool("prefill", 1), pool("decode", 3), stabilization=0) for _ in range(2))
    complete.run(10, busy(3, 3, rate=6.0))
    part.run(10, busy(3, 3, rate=4.0, routers=Coverage(2, 3)))
    assert part.sizes == (complete.sizes[0], 3)
    part.run(100, busy(3, 3, rate=0.1, routers=Coverage(2, 3)))
    assert part.sizes == (complete.sizes[0], 3)
    part.run(4, busy(3, 3, rate=0.1))
    assert part.sizes == (1, 1)


PREFILL_BEHIND = busy(1, 1, rate=2.0, awaiting={"prefill": 12.0}, active=14.0)


@pytest.mark.parametrize(
    ("signals", "sizes", "reasons", "words"),
    [
        (busy(rate=1.0), (2, 1), ("PrefillLoad", "WithinTargets"), "1.0 requests/s x 0.50 s a prompt need 2 replicas"),
        (busy(rate=10.0), (7, 1), ("PrefillLoad", "WithinTargets"), "a replica within 40 ms ITL"),
        (PREFILL_BEHIND, (3, 1), ("Backlog", "WithinTargets"), "11 prompts wait behind others"),
        (busy(rate=0.2), (1, 1), ("WithinTargets", "WithinTargets"), "0.20 requests/s"),
    ],
)
def test_load_sizes_its_own_pool(
    signals: Signals, sizes: tuple[int, int], reasons: tuple[str, str], words: str
) -> None:
    service = Service()
    decisions = service.tick(signals)
    assert service.sizes == sizes
    assert tuple(v.reason for v in decisions.values()) == reasons
    assert any(words in v.message for v in decisions.values())


def test_a_single_long_prompt_is_no_rate() -> None:
    service = Service()
    one = {"prefill": pods("prefill", 1, concurrency=1.0, busy=1.0, requests=0.0), "decode": pods("decode", 1)}
    service.run(20, make_signals(one, arrivals=0.1, active=1.0, awaiting={"prefill": 1.0}, overdue={"prefill": 1.0}))
    assert service.sizes == (1, 1)


def decoding(n: int, **changes: Any) -> Signals:
    load: dict[str, float] = {
        "concurrency": 4.0,
        "busy": 1.0,
        "requests": 5.0,
        "running": 4.0,
        "itl": 0.02,
        "tokens": 2000.0,
    }
    load |= {k: changes.pop(k) for k in list(changes) if k in {"kv_usage", "blocked", "waiting", "itl", "running"}}
    prompts = pods("prefill", 1, concurrency=0.1, busy=0.1, requests=5.0 * n)
    return make_signals(
        {"prefill": prompts, "decode": pods("decode", n, None, **load)}, arrivals=0.5 * n, active=4.0 * n, **changes
    )


@pytest.mark.parametrize(
    ("signals", "decode", "reason"),
    [
        (decoding(2, kv_usage=0.9), 3, "KvCacheFull"),
        (decoding(2, kv_usage=0.84), 2, "WithinTargets"),
        (decoding(2, blocked=2.0, overdue={"decode": 1.0}), 3, "DecodeAdmission"),
        (decoding(2, waiting=9.0), 2, "WithinTargets"),  # KV transfer is no lack of capacity
        (decoding(2, itl=0.06), 4, "DecodeLoad"),
        (decoding(2, itl=0.3), 4, "DecodeLoad"),  # at many streams nobody knows what one alone would have,
    ],
)
def test_decode_grows_for_its_own_reasons_and_prefill_does_not(signals: Signals, decode: int, reason: str) -> None:
    service = Service(pool("prefill", 1), pool("decode", 2))
    decisions = service.tick(signals)
    assert service.sizes == (1, decode)
    assert decisions["decode"].reason == reason


def test_blocked_in_one_round_is_passing_by_and_in_two_it_is_not() -> None:
    service = Service(pool("prefill", 1), pool("decode", 2))
    service.tick(decoding(2, blocked=2.0))
    assert service.sizes == (1, 2)
    service.tick(decoding(2, blocked=2.0))
    assert service.sizes == (1, 3)


def test_down_only_after_a_full_stabilization_and_to_what_was_needed_in_it() -> None:
    service = Service(pool("prefill", 5), pool("decode", 3), stabilization=60)
    assert service.run(60, busy(5, 3, rate=0.2))["prefill"].reason == "Stabilizing"
    assert service.sizes == (5, 3)
    service.run(2, busy(5, 3, rate=2.0))
    service.run(4, busy(5, 3, rate=0.2))
    assert service.sizes[0] == 3, "2/s x 0.5 s need 3"
    service.run(54, busy(3, 1, rate=0.2))
    assert service.sizes[0] == 3
    service.run(8, busy(3, 1, rate=0.2))
    assert service.sizes == (1, 1)


def test_a_gap_in_what_is_known_starts_the_watch_again() -> None:
    service = Service(pool("prefill", 5), pool("decode", 3), stabilization=60)
    service.run(50, busy(5, 3, rate=0.2))
    service.tick(None)
    service.run(58, busy(5, 3, rate=0.2))
    assert service.sizes == (5, 3)
    service.run(8, busy(5, 3, rate=0.2))
    assert service.sizes == (1, 1)


@pytest.mark.parametrize("rate", [0.3, 0.9, 1.7, 3.1, 4.4, 8.0, 15.0])
def test_after_a_down_the_same_load_asks_for_nothing(rate: float) -> None:
    service = Service(pool("prefill", 30, max=40), pool("decode", 30, max=40), stabilization=0)
    sizes: list[tuple[int, ...]] = []
    for i in range(60):
        wobble = 1 + 0.05 * (-1) ** i
        service.tick(busy(service.sizes[0], service.sizes[1], rate=rate * wobble))
        sizes.append(service.sizes)
    for before, after in pairwise(sizes):
        assert after <= before, "never up again"


def test_zero_only_without_any_traffic_and_up_with_the_first_request() -> None:
    service = Service(pool("prefill", min=0), pool("decode", min=0), stabilization=30)
    empty = make_signals({"prefill": pods("prefill", 1), "decode": pods("decode", 1)})
    service.run(28, empty)
    assert service.sizes == (1, 1)
    decisions = service.run(8, empty)
    assert service.sizes == (0, 0)
    assert decisions["decode"].reason == "Idle"
    gone = make_signals({"prefill": pods("prefill", 0), "decode": pods("decode", 0)})
    decisions = service.run(600, gone)
    assert service.sizes == (0, 0)
    assert all(v.sufficient for v in decisions.values())
    decisions = service.tick(make_signals(gone.pools, queued=1.0))
    assert service.sizes == (1, 1)
    assert {v.reason for v in decisions.values()} == {"Woken"}


def test_a_stream_in_hand_is_traffic() -> None:
    service = Service(pool("prefill", min=0), pool("decode", min=0), stabilization=10)
    service.run(100, make_signals({"prefill": pods("prefill", 1), "decode": pods("decode", 1)}, active=1.0))
    assert service.sizes == (1, 1)


@pytest.mark.parametrize(
    ("changes", "size", "words"),
    [
        ({"max": 2}, 2, "it has 2 because prefill.replicas.max is 2: raise it"),
        ({"unschedulable": 1}, 1, "the scheduler finds no node for 1 prefill pod"),
    ],
)
def test_a_limit_keeps_the_cause(changes: dict[str, int], size: int, words: str) -> None:
    service = Service(pool("prefill", **changes), pool("decode"))
    decision = service.tick(busy(rate=8.0))["prefill"]
    assert (decision.desired, decision.reason, bool(decision.limit)) == (size, "PrefillLoad", True)
    assert "8.0 requests/s x 0.50 s" in decision.message
    assert words in decision.message


def test_no_pod_of_one_pool_is_no_fault_of_the_other() -> None:
    service = Service(pool("prefill", 2), pool("decode", 2, ready=0), stabilization=1000)
    waiting = make_signals(
        {"prefill": pods("prefill", 2), "decode": pods("decode", 0)},
        arrivals=0.5,
        queued=30.0,
        overdue={"queue": 20.0},
        awaiting={"queue": 30.0},
    )
    for _ in range(60):
        service.tick(waiting, obey=False)
        service.change("decode", ready=0)
    decisions = service.tick(waiting, obey=False)
    assert [v.desired for v in decisions.values()] == [2, 2]
    assert decisions["decode"].reason == "Starting"


def test_figures_of_a_message_do_not_show_noise() -> None:
    service = Service(pool("prefill", 2), pool("decode"))
    messages = {service.tick(busy(2, 1, rate=1.0 + i / 10000))["prefill"].message for i in range(20)}
    assert messages == {"1.0 requests/s x 0.50 s a prompt need 2 replicas to keep waiting under 1.5 s for 97.5 %"}
