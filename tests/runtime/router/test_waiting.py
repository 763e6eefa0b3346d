"""Requests without a first token: where they wait, and who has waited too long."""

from __future__ import annotations

from phasewise_runtime.router.waiting import IN_DECODE, IN_PREFILL, IN_QUEUE, WaitingRoom


def awaiting(room: WaitingRoom) -> dict[str, int]:
    return {phase: n.awaiting for phase, n in room.count(None).items() if n.awaiting}


def overdue(room: WaitingRoom, read_before: float | None) -> dict[str, int]:
    return {phase: n.overdue for phase, n in room.count(read_before).items() if n.overdue}


def test_every_phase_is_counted_also_where_nobody_waits() -> None:
    assert list(WaitingRoom().count(1.0)) == [IN_QUEUE, IN_PREFILL, IN_DECODE]


def test_a_request_waits_in_one_phase_at_a_time_and_may_go_back() -> None:
    room = WaitingRoom()
    first, _ = room.enter(1.0), room.enter(2.0)
    assert awaiting(room) == {IN_QUEUE: 2}
    first.wait_in(IN_PREFILL)
    first.wait_in(IN_DECODE)
    assert awaiting(room) == {IN_QUEUE: 1, IN_DECODE: 1}
    first.wait_in(IN_PREFILL)
    assert awaiting(room) == {IN_QUEUE: 1, IN_PREFILL: 1}


def test_who_has_left_is_not_counted_until_it_must_wait_again() -> None:
    room = WaitingRoom()
    waiter = room.enter(1.0)
    waiter.leave()
    waiter.leave()
    assert awaiting(room) == {}
    waiter.wait_in(IN_PREFILL)
    assert overdue(room, 1.5) == {IN_PREFILL: 1}, "it has waited since it was read"


def test_overdue_are_those_read_too_long_ago() -> None:
    room = WaitingRoom()
    for since, phase in ((1.0, IN_PREFILL), (2.0, IN_PREFILL), (3.0, IN_DECODE)):
        room.enter(since).wait_in(phase)
    assert overdue(room, 1.0) == {}
    assert overdue(room, 2.5) == {IN_PREFILL: 2}
    assert overdue(room, 9.0) == {IN_PREFILL: 2, IN_DECODE: 1}
    assert overdue(room, None) == {}, "no target"
