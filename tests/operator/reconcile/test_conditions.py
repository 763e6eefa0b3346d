"""The tables of conditions, reasons and checks: in the code, in what is reported, and in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.operator.conftest import MakeContext

from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.conditions import CONDITIONS, Reason, conditions_table
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.reconcile.pod_problems import problems_table
from phasewise_operator.reconcile.report import refused, report
from phasewise_operator.reconcile.role_views import role_views

DOCS = Path(__file__).parents[3] / "docs" / "architecture.md"
NOW = "2026-01-02T03:04:05Z"


@pytest.mark.parametrize("table", [conditions_table(), problems_table()], ids=["conditions", "checks of pods"])
def test_the_documentation_has_the_table_of_the_code(table: str) -> None:
    assert table in DOCS.read_text(), f"docs/architecture.md should have:\n{table}"


def test_every_condition_of_the_table_is_reported_and_no_other(make_context: MakeContext) -> None:
    ctx = make_context()
    plan = make_plan(ctx, Observed())
    reported = [u.type for u in report(ctx, plan, Observed(), role_views(ctx, plan, Observed(), NOW), [])]
    assert sorted(reported) == sorted(name for row in CONDITIONS for name in row.types)


@pytest.mark.parametrize("reason", [Reason.INVALID_SPEC, Reason.INTERNAL_ERROR])
def test_the_table_has_the_reasons_of_a_spec_that_is_refused(reason: Reason) -> None:
    reasons = {name: row.reasons for row in CONDITIONS for name in row.types}
    assert all(update.reason in reasons[update.type] for update in refused(reason, "why"))


def test_every_reason_belongs_to_a_condition() -> None:
    assert {reason for row in CONDITIONS for reason in row.reasons} == set(Reason)
