"""Requests without a first token: where they wait, and who has waited too long."""

from __future__ import annotations

from phasewise_runtime.router.pending import IN_DECODE, IN_PREFILL, IN_QUEUE, PendingRequests


def awaiting(pending: PendingRequests) -> dict[str, int]:
    return {phase: n.awaiting for phase, n in pending.count(None).items() if n.awaiting}


def overdue(pending: PendingRequests, read_before: float | None) -> dict[str, int]:
    return {phase: n.overdue for phase, n in pending.count(read_before).items() if n.overdue}


def test_every_phase_is_counted_also_where_no_request_waits() -> None:
    assert list(PendingRequests().count(1.0)) == [IN_QUEUE, IN_PREFILL, IN_DECODE]


def test_a_request_waits_in_one_phase_at_a_time_and_may_go_back() -> None:
    pending = PendingRequests()
    first, _ = pending.add(1.0), pending.add(2.0)
    assert awaiting(pending) == {IN_QUEUE: 2}
    first.enter(IN_PREFILL)
    first.enter(IN_DECODE)
    assert awaiting(pending) == {IN_QUEUE: 1, IN_DECODE: 1}
    first.enter(IN_PREFILL)
    assert awaiting(pending) == {IN_QUEUE: 1, IN_PREFILL: 1}


def test_a_request_that_left_is_not_counted_until_it_waits_again() -> None:
    pending = PendingRequests()
    request = pending.add(1.0)
    request.leave()
    request.leave()
    assert awaiting(pending) == {}
    request.enter(IN_PREFILL)
    assert overdue(pending, 1.5) == {IN_PREFILL: 1}, "it has waited since it was read"


def test_overdue_are_those_read_too_long_ago() -> None:
    pending = PendingRequests()
    for since, phase in ((1.0, IN_PREFILL), (2.0, IN_PREFILL), (3.0, IN_DECODE)):
        pending.add(since).enter(phase)
    assert overdue(pending, 1.0) == {}
    assert overdue(pending, 2.5) == {IN_PREFILL: 2}
    assert overdue(pending, 9.0) == {IN_PREFILL: 2, IN_DECODE: 1}
    assert overdue(pending, None) == {}, "no target"
