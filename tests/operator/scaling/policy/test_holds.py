"""What holds back a scale-down: the first rule of the table that applies names itself."""

from __future__ import annotations

import pytest
from tests.operator.scaling.policy.signal_factory import Service, busy, pool

from phasewise_operator.scaling.policy import holds
from phasewise_operator.scaling.policy.holds import HoldContext, hold_on
from phasewise_operator.scaling.policy.memory import PoolMemory
from phasewise_operator.scaling.policy.stabilization import PastNeed
from phasewise_operator.scaling.types import Coverage

UNREADABLE = "no replica is taken away while a pod of the service cannot be scraped"
STABILIZATION = "taken away when that has held for 60 s"


@pytest.mark.parametrize(
    ("complete", "needed", "text"),
    [(False, 4, UNREADABLE), (False, 1, UNREADABLE), (True, 4, STABILIZATION), (True, 3, None), (True, 1, None)],
)
def test_the_first_rule_that_applies_gives_its_text(complete: bool, needed: int, text: str | None) -> None:
    context = HoldContext(PoolMemory(past_needs=(PastNeed(100.0, needed),)), 60.0, complete)
    assert hold_on(pool("decode", 4), context, 100.0) == text


def test_a_decision_shows_what_holds_it_back() -> None:
    service = Service(pool("prefill", 1), pool("decode", 3), stabilization=60)
    decision = service.tick(busy(1, 3, rate=0.2))["decode"]
    assert (decision.desired, decision.message) == (3, f"1 replica would do; {STABILIZATION}")
    decision = service.tick(busy(1, 3, rate=0.2, routers=Coverage(2, 3)))["decode"]
    assert (decision.desired, decision.message) == (3, f"1 replica would do; {UNREADABLE}")


def test_a_rule_that_is_added_to_the_table_holds_and_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "HOLDS", (*holds.HOLDS, lambda pool, *_: pool.role == "decode" and "not on Fridays"))
    service = Service(pool("prefill", 3), pool("decode", 3), stabilization=0)
    decisions = service.run(10, busy(3, 3, rate=0.2))
    assert service.sizes == (1, 3)
    assert (decisions["decode"].reason, decisions["decode"].message) == (
        "Stabilizing",
        "1 replica would do; not on Fridays",
    )
