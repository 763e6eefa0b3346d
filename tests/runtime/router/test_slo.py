"""What a request counts as by the latency targets."""

from __future__ import annotations

import pytest

from phasewise_runtime.contract import SLO_BOTH_MISSED, SLO_FAILED, SLO_ITL_MISSED, SLO_MET, SLO_TTFT_MISSED
from phasewise_runtime.router import outcome as end
from phasewise_runtime.router.outcome import Outcome
from phasewise_runtime.router.slo import Seen, Targets, judge, result

TARGETS = Targets(ttft=0.5, itl=0.04)


@pytest.mark.parametrize(
    ("ttft", "itl", "targets", "counts_as"),
    [
        (0.4, 0.03, TARGETS, SLO_MET),
        (0.5, 0.04, TARGETS, SLO_MET),  # on the target is within it
        (0.51, 0.03, TARGETS, SLO_TTFT_MISSED),
        (0.4, 0.041, TARGETS, SLO_ITL_MISSED),
        (0.51, 0.041, TARGETS, SLO_BOTH_MISSED),
        (0.4, None, TARGETS, SLO_MET),
        (0.51, None, TARGETS, SLO_TTFT_MISSED),
        (9.0, 0.041, Targets(itl=0.04), SLO_ITL_MISSED),
        (9.0, 9.0, Targets(ttft=10.0), SLO_MET),
    ],
)
def test_an_answer_is_judged_by_both_targets(ttft: float, itl: float | None, targets: Targets, counts_as: str) -> None:
    assert judge(ttft, itl, targets) == counts_as


@pytest.mark.parametrize(
    ("outcome", "seen", "counts_as"),
    [
        (end.OK, Seen(ttft=0.4, itl=0.03), SLO_MET),
        (end.OK, Seen(ttft=0.6, itl=0.05), SLO_BOTH_MISSED),
        (end.OK, Seen(ttft=0.4), SLO_MET),
        (end.OK, Seen(), None),
        (end.CLIENT_ERROR, Seen(waited=9.0), None),
        (end.CLIENT_CLOSED, Seen(waited=0.4), None),
        (end.CLIENT_CLOSED, Seen(waited=0.6), SLO_TTFT_MISSED),
        (end.CLIENT_CLOSED, Seen(), None),
        (end.CLIENT_CLOSED, Seen(ttft=0.4, itl=0.05), SLO_ITL_MISSED),
        (end.CLIENT_CLOSED, Seen(ttft=0.4), None),
        (end.CLIENT_CLOSED, Seen(ttft=0.6), SLO_TTFT_MISSED),
        (end.REJECTED, Seen(), SLO_FAILED),
        (end.REJECTED, Seen(waited=0.1), SLO_FAILED),
        (end.ENGINE_ERROR, Seen(ttft=0.1), SLO_FAILED),
        (end.STREAM_ERROR, Seen(ttft=0.1, itl=0.01), SLO_FAILED),
        (end.ERROR, Seen(), SLO_FAILED),
    ],
)
def test_how_a_request_ended_decides_what_it_is_judged_on(outcome: str, seen: Seen, counts_as: str | None) -> None:
    assert result(outcome, seen, TARGETS) == counts_as
    assert result(outcome, seen, Targets()) is None, "no target: nothing is judged"


def test_without_a_ttft_target_no_client_leaves_too_late() -> None:
    assert result(end.CLIENT_CLOSED, Seen(waited=99.0), Targets(itl=0.04)) is None


def test_a_closed_client_does_not_hide_that_its_stream_broke() -> None:
    outcome = Outcome()
    outcome.broke("disconnected")
    outcome.client_closed()
    assert (outcome.name, outcome.code, outcome.error) == (end.STREAM_ERROR, 200, "disconnected")


def test_a_client_that_closes_after_its_complete_answer_was_served() -> None:
    outcome = Outcome()
    outcome.answered(200)
    outcome.client_closed()
    assert (outcome.name, outcome.code) == (end.OK, 200)


def test_a_client_that_closes_before_its_answer_counts_as_closed() -> None:
    outcome = Outcome()
    outcome.client_closed()
    assert (outcome.name, outcome.code) == (end.CLIENT_CLOSED, 499)


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (200, end.OK),
        (400, end.CLIENT_ERROR),
        (429, end.REJECTED),
        (500, end.ENGINE_ERROR),
        (503, end.REJECTED),
        (504, end.ENGINE_ERROR),
    ],
)
def test_outcomes_by_status(status: int, name: str) -> None:
    outcome = Outcome()
    outcome.answered(status)
    assert (outcome.name, outcome.code) == (name, status)
