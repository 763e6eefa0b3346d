"""A bench that fails leaves no operator behind: it would act on the cluster by the rights of the person who ran it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from bench import leadership

from phasewise_operator.kube import Kube


class FakeOperator:
    running = 0

    def __init__(self, *_: Any) -> None:
        FakeOperator.running += 1

    def wait_for(self, pattern: str) -> str:
        if "second" in pattern:
            raise TimeoutError(pattern)
        return pattern

    def end(self, *_: Any) -> float:
        """As of a process: it may have ended."""
        if "ended" not in vars(self):
            vars(self)["ended"] = True
            FakeOperator.running -= 1
        return 0.0


async def test_operators_of_releases_end_when_one_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "OperatorProcess", FakeOperator)
    with pytest.raises(TimeoutError):
        await leadership.releases(cast("Kube", None), tmp_path / "operator.log")
    assert FakeOperator.running == 0
