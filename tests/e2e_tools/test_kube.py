"""Waiting for the cluster: a deadline that is kept, and a lost question that is asked again."""

from __future__ import annotations

import pytest
from e2e.cluster import ClusterError
from e2e.kube import wait_for


def test_a_question_that_was_lost_is_asked_again() -> None:
    answers = iter([ClusterError("timeout"), None, "there"])

    def probe() -> str | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait_for("it", probe, seconds=5, every=0) == "there"


def test_what_cannot_be_asked_until_the_deadline_is_told() -> None:
    def probe() -> None:
        raise ClusterError("connection refused")

    with pytest.raises(AssertionError, match="without: it; it could not be asked: connection refused"):
        wait_for("it", probe, seconds=0, every=0)


def test_other_errors_are_not_waited_out() -> None:
    def probe() -> None:
        raise KeyError("spec")

    with pytest.raises(KeyError):
        wait_for("it", probe, seconds=5, every=0)
