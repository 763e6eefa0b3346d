"""How large each pool is to be: who decides, what survives a restart, and which pods go first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.operator.conftest import MakeContext

from phasewise_operator.kinds import Manifest
from phasewise_operator.observed import Observed, PodView
from phasewise_operator.reconcile.deletion_cost import cheapest_pods, deletion_costs
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.reconcile.scaling_conditions import scaling_conditions
from phasewise_operator.reconcile.sizes import pool_sizes
from phasewise_operator.scaling.pools import pools_of
from phasewise_operator.scaling.types import (
    NO_RECOMMENDATION,
    Coverage,
    PodLoad,
    PoolSignals,
    Recommendation,
    Signals,
    SizeDecision,
)
from phasewise_runtime import contract

ONE_TO_FOUR = {"replicas": {"min": 1, "max": 4}}


def deployment(role: str, replicas: int, desired: str | None, created: str = "2026-01-01", name: str = "") -> Manifest:
    annotations = {} if desired is None else {contract.ANNOTATION_DESIRED: desired}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name or f"chat-{role}-{created}",
            "namespace": "default",
            "uid": f"uid-{role}-{created}",
            "creationTimestamp": f"{created}T00:00:00Z",
            "labels": {contract.LABEL_ROLE: role, contract.LABEL_REVISION: created},
            "annotations": annotations,
        },
        "spec": {"replicas": replicas},
    }


def scaler(role: str, replicas: int) -> Manifest:
    meta = {"name": f"chat-{role}", "namespace": "default", "generation": 1, "uid": f"uid-{role}"}
    return {
        "apiVersion": "phasewise.dev/v1alpha1",
        "kind": "PoolScaler",
        "metadata": meta,
        "spec": {"replicas": replicas},
    }


def seen(*children: Manifest, pods: tuple[PodView, ...] = ()) -> Observed:
    return Observed({(m["kind"], m["metadata"]["name"]): m for m in children}, pods)


def pod(name: str, ready: bool = True, deleting: bool = False, **more: Any) -> PodView:
    return PodView(name, "prefill", "r1", ready=ready, deleting=deleting, uid=f"uid-{name}", **more)


def says(**sizes: int) -> Recommendation:
    return Recommendation({role: SizeDecision(n, "PrefillLoad", "so much") for role, n in sizes.items()})


@pytest.mark.parametrize(
    ("mode", "observed", "recommendation", "expected"),
    [
        ("Auto", seen(), NO_RECOMMENDATION, (1, "NoSignal")),
        ("Auto", seen(deployment("prefill", 3, "3")), NO_RECOMMENDATION, (3, "NoSignal")),
        ("Auto", seen(deployment("prefill", 9, "3")), NO_RECOMMENDATION, (3, "NoSignal")),
        ("Auto", seen(deployment("prefill", 0, "3")), NO_RECOMMENDATION, (3, "NoSignal")),
        ("Auto", seen(deployment("prefill", 3, None)), NO_RECOMMENDATION, (3, "NoSignal")),
        ("Auto", seen(deployment("prefill", 7, "7")), NO_RECOMMENDATION, (4, "NoSignal")),
        ("Auto", seen(deployment("prefill", 1, "1")), says(prefill=2, decode=1), (2, "PrefillLoad")),
        ("Auto", seen(deployment("prefill", 1, "1")), says(prefill=9, decode=1), (4, "PrefillLoad")),
        ("Manual", seen(deployment("prefill", 3, "3")), says(prefill=2, decode=1), (1, "Manual")),
        ("External", seen(deployment("prefill", 3, "3")), says(prefill=2, decode=1), (3, "External")),
        ("External", seen(scaler("prefill", 2)), NO_RECOMMENDATION, (2, "External")),
        ("External", seen(scaler("prefill", 9)), NO_RECOMMENDATION, (4, "External")),
    ],
    ids=[
        "a new service begins at its min",
        "what runs stays when the operator starts",
        "replicas edited by hand are not taken for a decision",
        "nor what a rollout has for the moment",
        "a Deployment of an older operator",
        "a max that was lowered",
        "the loop decides",
        "bounds that were changed since",
        "Manual is min",
        "External begins at what runs",
        "External follows the PoolScaler",
        "within bounds",
    ],
)
def test_the_scaling_mode_decides_who_sizes_a_pool(
    mode: str, observed: Observed, recommendation: Recommendation, expected: tuple[int, str], make_context: MakeContext
) -> None:
    ctx = make_context(prefill=ONE_TO_FOUR, decode=ONE_TO_FOUR, scaling={"mode": mode})
    size = pool_sizes(ctx, observed, recommendation)["prefill"]
    assert (size.desired, size.reason) == expected


def test_an_external_pool_gets_a_scaler_once_and_its_replicas_never_become_ours(make_context: MakeContext) -> None:
    ctx = make_context(prefill=ONE_TO_FOUR, decode=ONE_TO_FOUR, scaling={"mode": "External"})
    first = make_plan(ctx, seen(deployment("prefill", 3, "3")))
    assert {m["metadata"]["name"]: m["spec"]["replicas"] for m in first.changes.create} == {
        "chat-prefill": 3,
        "chat-decode": 1,
    }
    there = make_plan(ctx, seen(scaler("prefill", 2), scaler("decode", 2)))
    assert there.changes.create == ()
    applied = [m for m in there.changes.write if m["kind"] == "PoolScaler"]
    assert [m["spec"] for m in applied] == [{"serviceRef": {"name": "chat"}, "role": r} for r in ("prefill", "decode")]


def test_a_scaler_goes_when_the_mode_is_another(make_context: MakeContext) -> None:
    plan = make_plan(make_context(), seen(scaler("prefill", 2)))
    assert [m["kind"] for m in plan.changes.remove] == ["PoolScaler"]


def test_a_pool_counts_what_is_beyond_it(make_context: MakeContext) -> None:
    gpu = {"accelerator": {}, "parallelism": {"tensor": 2}, "replicas": {"min": 1, "max": 4}}
    ctx = make_context(prefill=gpu, decode=gpu)
    pods = (
        pod("a", gpus=2),
        pod("b", ready=False, unschedulable="0/3 nodes", gpus=2),
        pod("c", deleting=True, gpus=2),
        pod("d", deleting=True, gpus=2),
    )
    live = deployment("prefill", 2, "2")
    live["metadata"]["labels"] |= {contract.LABEL_REVISION: "r1", contract.LABEL_GPUS: "2"}
    (prefill, decode) = pools_of(ctx, seen(live, pods=pods))
    assert (prefill.desired, prefill.ready, prefill.unschedulable) == (2, 1, 1)
    assert (prefill.gpus, prefill.gpus_beside) == (2, 4), "terminating pods hold their GPUs"
    assert (decode.desired, decode.ready, decode.gpus_beside) == (1, 0, 0)


def test_another_revision_counts_by_its_own_gpus_its_pods_not_yet_made_too(make_context: MakeContext) -> None:
    gpu = {"accelerator": {}, "parallelism": {"tensor": 1}, "replicas": {"min": 1, "max": 4}}
    old, new = deployment("prefill", 3, None, "2026-01-01"), deployment("prefill", 2, "2", "2026-01-02")
    old["metadata"]["labels"][contract.LABEL_GPUS] = "4"
    new["metadata"]["labels"][contract.LABEL_GPUS] = "1"
    observed = seen(old, new, pods=(PodView("a", "prefill", "2026-01-01", ready=True, deleting=False, gpus=4),))
    (prefill, _) = pools_of(make_context(prefill=gpu, decode=gpu), observed)
    assert (prefill.gpus, prefill.gpus_beside) == (1, 12)


@pytest.mark.parametrize("low", [1, 4])
def test_a_raised_min_does_not_pass_the_budget(low: int, make_context: MakeContext) -> None:
    def gpu(least: int) -> dict[str, Any]:
        return {"accelerator": {}, "replicas": {"min": least, "max": 8}}

    ctx = make_context(prefill=gpu(low), decode=gpu(1), scaling={"gpuBudget": 8})
    now = seen(deployment("prefill", 2, "2"), deployment("decode", 6, "6"))
    sizes = pool_sizes(ctx, now, says(prefill=2, decode=6))
    assert [s.desired for s in sizes.values()] == [2, 6]
    assert sizes["prefill"].limit == ("GpuBudget" if low > 2 else "")


@pytest.mark.parametrize(("mode", "reason"), [("Auto", "NoSignal"), ("External", "External")])
def test_a_budget_lowered_below_what_runs_is_kept(mode: str, reason: str, make_context: MakeContext) -> None:
    pool = {"accelerator": {}, "replicas": {"min": 1, "max": 8}}
    ctx = make_context(prefill=pool, decode=pool, scaling={"mode": mode, "gpuBudget": 4})
    now = seen(deployment("prefill", 4, "4"), deployment("decode", 4, "4"), scaler("prefill", 4), scaler("decode", 4))
    sizes = pool_sizes(ctx, now, NO_RECOMMENDATION)
    assert [(s.desired, s.reason, s.limit) for s in sizes.values()] == [(2, reason, "GpuBudget")] * 2
    limited = scaling_conditions(ctx, make_plan(ctx, now))[1]
    assert (limited.status.value, limited.reason) == ("True", "GpuBudget")
    assert "raise" in limited.message


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_the_pool_that_misses_its_target_gives_last_though_the_loop_has_not_looked_again(
    missing: str, make_context: MakeContext
) -> None:
    """That it misses was measured, whatever the spec of that time."""
    pool = {"accelerator": {}, "replicas": {"min": 1, "max": 8}}
    ctx = dataclasses.replace(make_context(prefill=pool, decode=pool, scaling={"gpuBudget": 6}), generation=2)
    decisions = {r: SizeDecision(4, "ItlMissed", "late", missed=r == missing) for r in ("prefill", "decode")}
    now = seen(deployment("prefill", 4, "4"), deployment("decode", 4, "4"))
    sizes = pool_sizes(ctx, now, Recommendation(decisions, generation=1))
    assert {role: size.desired for role, size in sizes.items()} == {"prefill": 2, "decode": 2} | {missing: 4}


def test_manual_pools_grow_as_the_others_pods_let_go_of_their_gpus(make_context: MakeContext) -> None:
    pool = {"accelerator": {}, "replicas": {"min": 4, "max": 8}}
    ctx = make_context(prefill=pool, decode=pool, scaling={"mode": "Manual", "gpuBudget": 8})
    sizes = pool_sizes(ctx, seen(deployment("prefill", 1, "1"), deployment("decode", 7, "7")), NO_RECOMMENDATION)
    assert [(s.desired, s.limit) for s in sizes.values()] == [(1, "GpuBudget"), (4, "")]
    going = tuple(PodView(f"d{n}", "decode", "2026-01-01", ready=True, deleting=n > 3, gpus=1) for n in range(6))
    decode = deployment("decode", 4, "4")
    decode["metadata"]["labels"][contract.LABEL_GPUS] = "1"
    half = seen(deployment("prefill", 1, "1"), decode, pods=going)
    assert [s.desired for s in pool_sizes(ctx, half, NO_RECOMMENDATION).values()] == [2, 4]


def test_a_decision_for_another_spec_is_not_applied(make_context: MakeContext) -> None:
    """As when a pool was in other hands meanwhile."""
    ctx = dataclasses.replace(make_context(prefill=ONE_TO_FOUR, decode=ONE_TO_FOUR), generation=3)
    old = dataclasses.replace(says(prefill=1, decode=1), generation=2)
    assert pool_sizes(ctx, seen(deployment("prefill", 4, "4")), old)["prefill"].desired == 4


@pytest.mark.parametrize("mode", ["Auto", "External", "Manual"])
def test_paused_leaves_every_size_as_it_is(mode: str, make_context: MakeContext) -> None:
    ctx = make_context(prefill=ONE_TO_FOUR, decode=ONE_TO_FOUR, scaling={"mode": mode}, paused=True)
    sizes = pool_sizes(ctx, seen(deployment("prefill", 3, "3"), scaler("prefill", 2)), says(prefill=2, decode=1))
    assert (sizes["prefill"].desired, sizes["prefill"].reason) == (3, "Paused")


def loads(**requests: float) -> Recommendation:
    pods = {name: PodLoad(running=n, waiting=0.0) for name, n in requests.items()}
    signals = Signals(0, 10, 30, Coverage(1, 1), {"prefill": PoolSignals(Coverage(len(pods), len(pods)), pods)})
    return Recommendation(signals=signals)


@pytest.mark.parametrize(
    ("pods", "recommendation", "gone"),
    [
        ([pod("a"), pod("b"), pod("c")], loads(a=5, b=1, c=3), ["b"]),
        ([pod("a"), pod("b", ready=False)], loads(a=0), ["b"]),
        ([pod("a"), pod("b")], loads(a=7), ["a"]),
        ([pod("a", created="1"), pod("b", created="2")], NO_RECOMMENDATION, ["b"]),
        ([pod("a", cordoned=True), pod("b")], loads(a=7, b=0), ["a"]),
    ],
    ids=[
        "fewest requests",
        "what is not ready",
        "what is unknown goes last",
        "of equals the youngest",
        "its node is drained",
    ],
)
def test_the_pod_with_the_fewest_requests_goes(
    pods: list[PodView], recommendation: Recommendation, gone: list[str]
) -> None:
    assert [p.name for p in cheapest_pods(pods, 1, recommendation)] == gone


def test_costs_are_written_only_where_a_pool_shrinks_and_taken_back(make_context: MakeContext) -> None:
    ctx = make_context(prefill=ONE_TO_FOUR, decode=ONE_TO_FOUR)
    plan = make_plan(ctx, seen(), says(prefill=1, decode=1))
    revision = plan.engines[0].revision
    live = deployment("prefill", 2, "2")
    live["metadata"]["labels"][contract.LABEL_REVISION] = revision
    pods = tuple(
        PodView(n, "prefill", revision, ready=True, deleting=False, uid=f"uid-{n}", deletion_cost=cost)
        for n, cost in (("a", ""), ("b", "-1"), ("c", ""))
    )
    plan = make_plan(ctx, seen(live, pods=pods), says(prefill=1, decode=1))
    costs = deletion_costs("default", plan, seen(live, pods=pods), loads(a=0, b=4, c=4))
    annotations = {m["metadata"]["name"]: m["metadata"].get("annotations") for m in costs}
    assert annotations == {"a": {contract.ANNOTATION_DELETION_COST: "-1"}, "b": None}
    same = make_plan(ctx, seen(live, pods=pods), says(prefill=2, decode=1))
    assert deletion_costs("default", same, seen(live, pods=pods), loads(a=0)) == []
