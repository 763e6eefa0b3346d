"""What the status says of scaling, and when that is worth a write or an Event."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.operator.conftest import MakeContext

from phasewise_operator.api.status import ConditionStatus
from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.conditions import ConditionUpdate, Severity
from phasewise_operator.reconcile.events import changed_conditions, condition_event, decision_event, fresh_decisions
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.reconcile.report import report
from phasewise_operator.reconcile.role_views import role_views
from phasewise_operator.reconcile.status import (
    MESSAGE_SECONDS,
    PROGRESS_SECONDS,
    STALE_SECONDS,
    stale_in,
    status_of,
    write_pause,
)
from phasewise_operator.render.context import Context
from phasewise_operator.scaling.types import FIGURES_SECONDS, Coverage, Latency, Recommendation, Signals, SizeDecision

FIVE_MINUTES_LATER = "2026-01-02T03:09:05Z"
NOW, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:04:35Z"
POOL = {"replicas": {"min": 1, "max": 4}}


def recommendation(
    prefill: int = 1, ttft: float | None = 0.43, reason: str = "WithinTargets", **flags: Any
) -> Recommendation:
    latency = Latency(20, ttft, ttft, ttft, ttft) if ttft is not None else None
    signals = Signals(0, 10, 30, Coverage(1, 1), {}, ttft=latency)
    decisions = {
        "prefill": SizeDecision(prefill, reason, "so it is", **flags),
        "decode": SizeDecision(1, "WithinTargets", "well"),
    }
    return Recommendation(decisions, signals)


def updates_of(ctx: Context, given: Recommendation) -> list[ConditionUpdate]:
    plan = make_plan(ctx, Observed(), given)
    return report(ctx, plan, Observed(), role_views(ctx, plan, Observed(), NOW), [])


def status(ctx: Context, given: Recommendation, before: Manifest, now: str = NOW) -> Manifest:
    plan, live = make_plan(ctx, Observed(), given), {"metadata": {"generation": 1}, "status": before}
    views = role_views(ctx, plan, Observed(), now)
    return status_of(ctx, plan, Observed(), views, updates_of(ctx, given), given, live, now)


@pytest.fixture
def ctx(make_context: MakeContext) -> Context:
    return make_context(prefill=POOL, decode=POOL)


def test_measured_latency_is_shown_and_stays_when_traffic_ends(ctx: Context) -> None:
    first = status(ctx, recommendation(), {})
    shown = {"target": "500ms", "measured": "430ms", "lastSampleTime": NOW, "summary": "430ms/500ms"}
    assert first["slo"]["ttft"] == shown
    assert status(ctx, recommendation(ttft=None), first, LATER)["slo"]["ttft"] == shown
    assert first["slo"]["itl"]["summary"] == "-/40ms"


def test_a_figure_that_is_stale_is_not_shown_and_says_when_it_was_measured(ctx: Context) -> None:
    first = status(ctx, recommendation(), {})
    assert stale_in(first, LATER) == STALE_SECONDS - 30
    idle = status(ctx, recommendation(ttft=None), first, FIVE_MINUTES_LATER)
    assert idle["slo"]["ttft"] == {**first["slo"]["ttft"], "summary": "-/500ms"}
    assert stale_in(idle, FIVE_MINUTES_LATER) is None
    assert write_pause(idle, status(ctx, recommendation(ttft=None), idle, "2026-01-02T09:00:00Z")) is None


def test_a_change_of_size_is_recorded_with_its_reason_newest_first_five_at_most(ctx: Context) -> None:
    now = status(ctx, recommendation(1), {})
    assert now["scaling"]["decisions"] == [], "the first size is no change"
    for size in (2, 3, 4, 3, 2, 1):
        before, now = now, status(ctx, recommendation(size, reason="PrefillLoad"), now, LATER)
        (fresh,) = fresh_decisions(before, now)
        assert (fresh.role, fresh.to, fresh.reason) == ("prefill", size, "PrefillLoad")
    changes = [(d["from"], d["to"]) for d in now["scaling"]["decisions"]]
    assert changes == [(2, 1), (3, 2), (4, 3), (3, 4), (2, 3)]
    again = status(ctx, recommendation(1), now, LATER)
    assert fresh_decisions(now, again) == []


def test_a_change_of_size_makes_an_event(ctx: Context) -> None:
    before = status(ctx, recommendation(1), {})
    after = status(ctx, recommendation(3, reason="PrefillLoad"), before)
    (fresh,) = fresh_decisions(before, after)
    meta = {"name": "chat", "namespace": "default", "uid": "u"}
    event = decision_event({"apiVersion": "v", "kind": "InferenceService", "metadata": meta}, fresh, NOW)
    assert (event["reason"], event["action"], event["type"]) == ("PrefillLoad", "ScaleUp", "Normal")
    assert event["note"] == "prefill from 1 to 3: so it is"


def test_each_pools_last_change_is_kept(ctx: Context) -> None:
    """The next pass compares its size with it."""
    now = status(ctx, recommendation(1), {})
    other = Recommendation({"prefill": SizeDecision(1, "PrefillLoad", ""), "decode": SizeDecision(3, "DecodeLoad", "")})
    now = status(ctx, other, now)
    for size in (2, 3, 4, 3, 2, 1):
        given = Recommendation(
            {"prefill": SizeDecision(size, "PrefillLoad", ""), "decode": SizeDecision(3, "DecodeLoad", "")}
        )
        now = status(ctx, given, now)
    kept = now["scaling"]["decisions"]
    assert len(kept) == 5
    assert [d["to"] for d in kept if d["role"] == "decode"] == [3]


def test_scaling_conditions_stay_until_a_new_operator_has_measured(ctx: Context) -> None:
    before = status(ctx, recommendation(), {})
    after = status(ctx, Recommendation(), before, LATER)
    assert after["conditions"] == before["conditions"]
    assert changed_conditions(updates_of(ctx, Recommendation()), before) == []


def test_a_bound_that_comes_and_goes_with_the_load_is_written_now_and_then(ctx: Context) -> None:
    before = status(ctx, recommendation(), {})
    limited = status(ctx, recommendation(limit="AtMaximum"), before, LATER)
    assert write_pause(before, limited) == FIGURES_SECONDS


def changed(before: Manifest, path: str, value: Any) -> Manifest:
    after = copy.deepcopy(before)
    *way, last = path.split(".")
    place = after
    for part in way:
        place = place[part]
    place[last] = value
    return after


CHANGES = [
    ("the same", None, None, None),
    ("another size", "prefill.desired", 2, 0),
    ("one more ready", "prefill.ready", 1, PROGRESS_SECONDS),
    ("a figure that moved", "slo.ttft.measured", "800ms", FIGURES_SECONDS),
    ("a figure that hardly moved", "slo.ttft.measured", "440ms", None),
    ("a figure that is stale", "slo.ttft.summary", "-/500ms", FIGURES_SECONDS),
    ("the same, a little later", "slo.ttft.lastSampleTime", LATER, None),
    ("the same, before it looks stale", "slo.ttft.lastSampleTime", FIVE_MINUTES_LATER, FIGURES_SECONDS),
    ("a pool's reason", "prefill.reason", "PrefillLoad", FIGURES_SECONDS),
    ("a target", "slo.ttft.target", "700ms", 0),
]


@pytest.mark.parametrize(("path", "value", "pause"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_a_change_is_written_when_it_is_worth_a_write(
    path: str | None, value: Any, pause: float | None, ctx: Context
) -> None:
    before = status(ctx, recommendation(), {})
    assert write_pause(before, changed(before, path, value) if path else before) == pause


def test_a_message_alone_is_written_now_and_then(ctx: Context) -> None:
    before = status(ctx, recommendation(), {})
    after = copy.deepcopy(before)
    next(c for c in after["conditions"] if c["type"] == "Ready")["message"] = "request 4711 was refused"
    assert write_pause(before, after) == MESSAGE_SECONDS
    next(c for c in after["conditions"] if c["type"] == "Ready")["reason"] = "Refused"
    assert write_pause(before, after) == 0


def test_conditions_of_somebody_else_are_no_change(ctx: Context) -> None:
    after = status(ctx, recommendation(), {})
    foreign = {"type": "Audited", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": NOW}
    assert write_pause({**after, "conditions": [foreign, *after["conditions"]]}, after) is None


def test_the_status_that_the_crd_gives_a_new_object_is_taken_for_none(ctx: Context) -> None:
    assert status(ctx, recommendation(), {"observedGeneration": -1}) == status(ctx, recommendation(), {})


SCALING = [
    ({}, ("True", "Measured"), ("False", "WithinBounds")),
    ({"sufficient": False}, ("False", "Unreadable"), ("False", "WithinBounds")),
    ({"limit": "AtMaximum"}, ("True", "Measured"), ("True", "AtMaximum")),
]


@pytest.mark.parametrize(("flags", "active", "limited"), SCALING)
def test_scaling_has_its_conditions(
    flags: dict[str, Any], active: tuple[str, str], limited: tuple[str, str], ctx: Context
) -> None:
    now = status(ctx, recommendation(reason="Unreadable", **flags), {})
    found = {c["type"]: (c["status"], c["reason"]) for c in now["conditions"]}
    assert (found["ScalingActive"], found["ScalingLimited"]) == (active, limited)


def test_an_event_is_recorded_when_scaling_stops_and_not_when_it_begins(ctx: Context) -> None:
    def events(given: Recommendation, before: Manifest) -> list[str]:
        changed = changed_conditions(updates_of(ctx, given), before)
        return [v.reason for v in changed if v.type.startswith("Scaling")]

    first = status(ctx, recommendation(), {})
    assert events(recommendation(), {}) == []
    assert events(recommendation(reason="Unreadable", sufficient=False), first) == ["Unreadable"]
    assert events(recommendation(limit="AtMaximum"), first) == ["AtMaximum"]


NO_MAXIMUM = [
    (
        {},
        {},
        "False",
        "prefill.replicas.max is not set, so prefill keeps replicas.min 1: set max to let it scale",
        "decode.",
    ),
    (
        {"replicas": {"min": 2, "max": 2}},
        {},
        "False",
        "prefill.replicas.max is 2, so prefill keeps replicas.min 2",
        "decode.",
    ),
    ({}, POOL, "True", "prefill.replicas.max is not set", ""),
    (POOL, {}, "True", "decode.replicas.max is not set", ""),
]


@pytest.mark.parametrize(("prefill", "decode", "active", "text", "also"), NO_MAXIMUM)
def test_a_pool_that_auto_cannot_scale_is_named(
    prefill: dict[str, Any],
    decode: dict[str, Any],
    active: str,
    text: str,
    also: str,
    make_context: MakeContext,
) -> None:
    ctx = make_context(prefill=prefill, decode=decode)
    update = next(u for u in updates_of(ctx, recommendation()) if u.type == "ScalingActive")
    assert (update.status.value, update.reason) == (active, "NoMaximum" if active == "False" else "Measured")
    assert text in update.message
    assert also in update.message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scaling": {"mode": "Manual"}}, "Manual"),
        ({"scaling": {"mode": "External"}}, "External"),
        ({"paused": True}, "Paused"),
    ],
)
def test_no_maximum_is_reported_only_in_mode_auto(
    changes: dict[str, Any], reason: str, make_context: MakeContext
) -> None:
    updates = updates_of(make_context(**changes), recommendation())
    assert next(u.reason for u in updates if u.type == "ScalingActive") == reason


def test_pools_that_cannot_scale_are_said_before_anything_was_measured(make_context: MakeContext) -> None:
    first = status(make_context(), Recommendation(), {})
    assert {c["type"]: c["reason"] for c in first["conditions"]}["ScalingActive"] == "NoMaximum"


def test_a_bound_of_pools_that_cannot_scale_follows_the_load_too(make_context: MakeContext) -> None:
    ctx = make_context()
    before = status(ctx, recommendation(), {})
    limited = status(ctx, recommendation(limit="AtMaximum"), before, LATER)
    assert write_pause(before, limited) == FIGURES_SECONDS


def test_an_operator_that_has_just_begun_leaves_a_status_as_it_is(ctx: Context) -> None:
    """Beside a thousand services, each write would be a thousand."""
    before = status(ctx, recommendation(), {})
    assert status(ctx, Recommendation(), before, LATER) == before


LIVE = {"apiVersion": "v", "kind": "InferenceService", "metadata": {"name": "chat", "namespace": "default", "uid": "u"}}


@pytest.mark.parametrize(
    ("severity", "expected"),
    [(Severity.NORMAL, "Normal"), (Severity.WARNING, "Warning"), (Severity.STALLED, "Warning")],
)
def test_the_severity_decides_the_type_of_an_event(severity: Severity, expected: str) -> None:
    update = ConditionUpdate("Ready", ConditionStatus.FALSE, "Unschedulable", "no node", severity)
    assert condition_event(LIVE, update, NOW)["type"] == expected


def test_scaling_without_a_router_or_a_node_is_no_warning(ctx: Context) -> None:
    """Both pass by themselves: the router is starting, or a node may come."""
    no_router = updates_of(ctx, recommendation(reason="NoRouter", sufficient=False))
    no_node = updates_of(ctx, recommendation(limit="Unschedulable"))
    at_maximum = updates_of(ctx, recommendation(limit="AtMaximum"))
    types = {(u.type, u.reason): condition_event(LIVE, u, NOW)["type"] for u in (*no_router, *no_node, *at_maximum)}
    assert types["ScalingActive", "NoRouter"] == "Normal"
    assert types["ScalingLimited", "Unschedulable"] == "Normal"
    assert types["ScalingLimited", "AtMaximum"] == "Warning"
