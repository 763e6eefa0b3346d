"""Each reason that tells of trouble has a page that says what to do, and messages lead there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.live_objects import NOW, observed, report

from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.conditions import LONGEST_MESSAGE, ConditionUpdate, Reason, conditions
from phasewise_operator.reconcile.events import condition_event
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.reconcile.pod_problems import CHECKS
from phasewise_operator.reconcile.runbooks import FAULTS, FOLDER, runbooks_table
from phasewise_operator.scaling.policy.data_quality import NO_SIGNAL
from phasewise_operator.scaling.policy.reasons import REASONS
from phasewise_operator.scaling.types import LIMITS
from phasewise_runtime import contract

ROOT = Path(__file__).parents[3]
PAGES = {path.stem: path.read_text() for path in (ROOT / FOLDER).glob("*.md") if path.stem != "README"}
HELD = {reason for reason, text in REASONS.items() if text == REASONS[NO_SIGNAL]}
GOOD = {
    *(Reason.SERVING, Reason.REPLICAS_READY, Reason.LOADED, Reason.LOADING, Reason.TRANSFERRED, Reason.KV_UNPROVED),
    *(Reason.MEASURED, Reason.EXTERNAL, Reason.WITHIN_BOUNDS, Reason.RECONCILED, Reason.UP_TO_DATE),
}
"""Reasons of conditions that are as they should be, or not known yet."""


def test_every_reason_that_tells_of_trouble_has_a_row() -> None:
    reasons = {*Reason, *(check.reason for check in CHECKS), *HELD, *LIMITS}
    assert set(FAULTS) == reasons - GOOD, "a new reason is a row in FAULTS, or one of GOOD"


def test_every_row_has_a_page_and_every_page_a_row() -> None:
    assert set(PAGES) == set(FAULTS), f"pages are {FOLDER}/<Reason>.md"


def test_the_index_lists_the_pages() -> None:
    assert runbooks_table() in (ROOT / FOLDER / "README.md").read_text(), f"README.md should have:\n{runbooks_table()}"


@pytest.mark.parametrize("reason", PAGES)
def test_a_page_says_what_it_means_whose_fault_it_is_where_to_look_and_what_to_do(reason: str) -> None:
    lines = PAGES[reason].splitlines()
    assert (lines[0], lines[2]) == (f"# {reason}", f"At fault: {FAULTS[reason]}.")
    assert [line for line in lines if line.startswith("## ")] == [
        "## What it means",
        "## Where to look",
        "## What to do",
    ]
    assert "kubectl " in PAGES[reason].partition("## Where to look")[2].partition("## What to do")[0]


def test_pages_name_labels_and_metrics_that_exist() -> None:
    text = "".join(PAGES.values())
    known = {value for value in vars(contract).values() if isinstance(value, str)}
    assert set(re.findall(r"phasewise\.dev/[a-z-]+", text)) <= known
    shipped = "".join(p.read_text() for top in ("operator", "runtime") for p in (ROOT / top).rglob("*.py"))
    for metric in re.findall(r"phasewise_(?:router_|operator_)?([a-z_]+)", text):
        assert metric.removesuffix("_total") in shipped, metric


def test_links_of_pages_lead_somewhere() -> None:
    for path in (ROOT / FOLDER).glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def message(update: ConditionUpdate) -> str:
    return conditions([update], 1, {}, NOW)[0].message


STATES = [
    ("Ready", ConditionStatus.FALSE, "no node (at fault: the cluster; see docs/runbooks/Unschedulable.md)"),
    ("Ready", ConditionStatus.TRUE, "no node"),
    ("ScalingLimited", ConditionStatus.TRUE, "no node (at fault: the cluster; see docs/runbooks/Unschedulable.md)"),
    ("ScalingLimited", ConditionStatus.FALSE, "no node"),
]


@pytest.mark.parametrize(("kind", "status", "text"), STATES)
def test_a_condition_that_is_not_as_it_should_be_says_whose_fault_it_is_and_where_to_read_on(
    kind: str, status: ConditionStatus, text: str
) -> None:
    update = ConditionUpdate(kind, status, "Unschedulable", "no node")
    live = {"apiVersion": "v", "kind": "k", "metadata": {"name": "chat", "namespace": "default", "uid": "u"}}
    assert message(update) == condition_event(live, update, NOW)["note"] == text


def test_what_is_nobodys_fault_blames_nobody() -> None:
    update = ConditionUpdate("Reconciling", ConditionStatus.TRUE, Reason.PAUSED, "spec.paused is true")
    assert message(update) == "spec.paused is true (see docs/runbooks/Paused.md)"


def test_a_message_that_is_cut_still_leads_to_its_page() -> None:
    update = ConditionUpdate("Stalled", ConditionStatus.TRUE, Reason.APPLY_REFUSED, "x" * 40_000)
    assert len(message(update)) == LONGEST_MESSAGE
    assert message(update).endswith("x... (at fault: the spec; see docs/runbooks/ApplyRefused.md)")
    note = update.full_message(1000)
    assert (len(note), note[-4:]) == (1000, ".md)")


def test_the_end_of_a_log_in_a_message_comes_after_all_that_kubectl_get_shows() -> None:
    text = "pod p: no such option\nINFO one\n" + "x" * 40_000
    first, *log = message(ConditionUpdate("Stalled", ConditionStatus.TRUE, "InvalidEngine", text)).split("\n")
    assert first == "pod p: no such option (at fault: the spec; see docs/runbooks/InvalidEngine.md)"
    assert (log[0], log[1][-4:]) == ("INFO one", "x...")


def test_whatever_is_not_as_it_should_be_has_a_page(make_context: MakeContext) -> None:
    """Of a service that starts, that is paused and that is at zero; of others the tables above say so."""
    zero = {role: {"replicas": {"min": 0, "max": 1}} for role in contract.ENGINE_ROLES}
    for ctx in (make_context(), make_context(paused=True), make_context(**zero)):
        plan = make_plan(ctx, Observed())
        found = report(ctx, plan, observed(plan), [])
        assert {u.reason for u in found if not u.is_good} - GOOD <= set(FAULTS)
