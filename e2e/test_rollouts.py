"""Three kinds of rollout under load; `make rollouts` plays all of them, on the same service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from e2e import service
from e2e.reference import Reference
from e2e.rollouts.ground import rollout_manifest
from e2e.rollouts.kinds import KINDS
from e2e.rollouts.play import first_answers, play
from e2e.service import Service


@pytest.fixture(scope="module")
def rollout(phasewise: None, show_step: Callable[[str], AbstractContextManager[None]]) -> Iterator[Service]:
    with show_step("service rollout: one prefill pod, one decode pod, and places for as many again"):
        service.apply(rollout_manifest())
        found = Service.when_ready(rollout_manifest())
    yield found
    with show_step("deleting service rollout: nothing of it is left"):
        found.delete()


@pytest.fixture(scope="module")
def answers(rollout: Service) -> Reference:
    return first_answers(rollout)


@pytest.mark.parametrize("kind", ["turn", "cache", "back"])
def test_no_request_fails_and_no_gpu_too_many_is_held(kind: str, rollout: Service, answers: Reference) -> None:
    result = play(KINDS[kind], rollout, answers)
    print(result.row)
    assert result.faults == []
