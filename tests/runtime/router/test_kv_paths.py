"""The state of one KV path, as tables and over random histories."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_runtime.router import kv_paths as kp
from phasewise_runtime.router.kv_paths import FAILED, MAX_BACKOFF, NEW, PROVED, UNPROVED, Path

Event = Callable[[Path, float], Path]
EVENTS: dict[str, Event] = {
    "canary": kp.on_canary,
    "canary failed": lambda path, now: kp.on_failed_canary(path, now, kp.RECOMPUTED),
    "canary without result": kp.on_no_result,
    "canary refused": kp.on_refusal,
    "request": kp.on_success,
    "evidence": lambda path, now: kp.on_failure(path, now, kp.PROMPT_MISMATCH),
    "load failure": kp.on_load_failure,
    "suspicion": lambda path, _: kp.on_suspicion(path),
}


def after(*events: str, path: Path = NEW) -> Path:
    """The events come a second apart, from the first second on."""
    for now, event in enumerate(events, 1):
        path = EVENTS[event](path, float(now))
    return path


CASES: list[tuple[tuple[str, ...], str, bool]] = [
    ((), UNPROVED, False),
    (("request",), UNPROVED, False),
    (("canary",), PROVED, True),
    (("canary", "request"), PROVED, True),
    (("canary", "canary without result"), PROVED, True),
    (("canary", "suspicion"), PROVED, True),
    (("canary", "evidence"), FAILED, False),
    (("canary", "canary failed"), FAILED, False),
    (("canary", "load failure"), PROVED, True),
    (("canary", "load failure", "load failure"), FAILED, False),
    (("canary", "load failure", "request", "load failure"), PROVED, True),
    (("canary", "evidence", "request"), FAILED, False),
    (("canary", "evidence", "canary without result"), FAILED, False),
    (("canary", "evidence", "canary"), PROVED, True),
    (("canary without result",), UNPROVED, False),
    (("canary refused",), UNPROVED, True),
    (("canary refused", "request"), PROVED, True),
    (("canary refused", "request", "evidence"), FAILED, False),
    (("canary refused", "request", "evidence", "canary refused"), UNPROVED, True),
]


@pytest.mark.parametrize(("events", "state", "open_"), CASES, ids=[", ".join(c[0]) or "nothing" for c in CASES])
def test_state_after(events: tuple[str, ...], state: str, open_: bool) -> None:
    path = after(*events)
    assert (path.state, path.open) == (state, open_)
    assert bool(path.reason) == (state == FAILED)


def test_a_failed_path_is_tried_again_after_1_s_doubling_to_30() -> None:
    path, now, waits = NEW, 0.0, list[float]()
    for _ in range(8):
        path = kp.on_failed_canary(path, now, kp.RECOMPUTED)
        waits.append(path.next_try - now)
        now = path.next_try
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_fault_that_no_canary_shows_makes_the_back_off_grow_all_the_same() -> None:
    path = after("canary", "evidence", "canary", "evidence")
    assert path.next_try - path.tried_at == 2
    assert kp.on_canary(path, path.tried_at + kp.FORGIVE_AFTER + 1).tries == 0, "until it has lasted"


def test_requests_that_were_sent_before_a_path_failed_do_not_lengthen_its_back_off() -> None:
    assert after("canary", "evidence", "evidence", "load failure") == after("canary", "evidence")


def test_a_suspicion_ends_with_a_canary_or_a_request() -> None:
    for end in ("canary", "request", "canary without result", "canary failed"):
        assert after("canary", "suspicion").suspected
        assert not after("canary", "suspicion", end).suspected


@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.floats(0, 100)), max_size=30))
def test_no_history_breaks_a_rule(history: list[tuple[str, float]]) -> None:
    path, now = NEW, 0.0
    for event, seconds in history:
        now += seconds
        before, path = path, EVENTS[event](path, now)
        no_canary_can_tell = path.refused or path.tries >= kp.WITHOUT_RESULT
        assert path.open == (path.state == PROVED or (no_canary_can_tell and path.state == UNPROVED))
        assert path.next_try - now <= MAX_BACKOFF + 1e-9
        if path.state == PROVED and before.state != PROVED:
            assert path.proved_at == now
        if before.state == FAILED and path.state != FAILED:
            assert event.startswith("canary"), "only a canary opens a failed path"


def test_a_path_that_no_canary_can_judge_is_left_to_requests() -> None:
    """As where the engines are too busy: to keep all prompts in decode would make them busier."""
    once = kp.on_no_result(kp.NEW, 1.0)
    assert not once.open
    twice = kp.on_no_result(once, 3.0)
    assert twice.open
    assert kp.on_success(twice, 4.0).state == kp.PROVED
    assert not kp.on_failure(twice, 4.0, kp.KV_PARAMS_MISSING).open
