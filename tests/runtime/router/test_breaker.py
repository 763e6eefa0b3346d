"""When a pod is ejected and how it comes back."""

from __future__ import annotations

import pytest

from phasewise_runtime.router.breaker import (
    FORGIVE_AFTER,
    MAX_BACKOFF,
    Breaker,
    backoff,
    on_failure,
    on_probe,
    on_success,
)


def run(*steps: tuple[str, float]) -> Breaker:
    b = Breaker()
    for step, now in steps:
        if step in ("hard", "soft"):
            b = on_failure(b, now, hard=step == "hard")
        elif step == "ok":
            b = on_success(b)
        else:
            b = on_probe(b, now, ok=step == "probe ok")
    return b


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([], "closed"),
        ([("hard", 0)], "open"),
        ([("soft", 0), ("soft", 0)], "closed"),
        ([("soft", 0), ("soft", 0), ("soft", 0)], "open"),
        ([("soft", 0), ("soft", 0), ("ok", 0), ("soft", 0), ("soft", 0)], "closed"),
        ([("hard", 0), ("probe bad", 1)], "open"),
        ([("hard", 0), ("probe ok", 1)], "half_open"),
        ([("hard", 0), ("ok", 0)], "open"),
        ([("hard", 0), ("probe ok", 1), ("ok", 1)], "closed"),
        ([("hard", 0), ("probe ok", 1), ("soft", 1)], "open"),
        ([("probe bad", 0)], "closed"),
    ],
)
def test_states(steps: list[tuple[str, float]], state: str) -> None:
    assert run(*steps).state == state


def test_the_back_off_doubles_while_half_open_requests_fail() -> None:
    b, now, waits = Breaker(), 0.0, list[float]()
    for _ in range(7):
        b = on_failure(b, now, hard=True)
        waits.append(b.until - now)
        assert not b.probe_due(now)
        assert b.probe_due(b.until)
        now = b.until
        b = on_probe(b, now, ok=True)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert backoff(99) == MAX_BACKOFF


def test_a_failed_probe_puts_the_next_off() -> None:
    b = run(("hard", 0), ("probe bad", 1))
    assert b.until == 2


def test_a_failure_while_open_changes_nothing() -> None:
    b = run(("hard", 0))
    assert on_failure(b, 5, hard=True) == b


@pytest.mark.parametrize("state", ["closed", "half_open"])
def test_soft_failures_never_eject_the_last_pod(state: str) -> None:
    b = Breaker() if state == "closed" else run(("hard", 0), ("probe ok", 1))
    for _ in range(9):
        b = on_failure(b, 2, hard=False, last=True)
    assert b.state == state
    assert on_failure(b, 2, hard=True, last=True).state == "open"
    assert on_failure(b, 2, hard=False).state == "open", "with another beside it again, the next failure counts"


def test_old_ejections_are_forgiven() -> None:
    b = run(("hard", 0), ("probe ok", 1), ("soft", 1), ("probe ok", 3), ("ok", 3))
    later = b.until + FORGIVE_AFTER + 1
    assert on_failure(b, later, hard=True).until == later + 1
