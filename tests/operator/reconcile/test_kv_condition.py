"""KVTransferReady: what it says of the routers' tries, what Ready makes of it, and when its age is written."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import cast

import pytest
from tests.operator.conftest import MakeContext
from tests.operator.reconcile.fake_api import KEY, Api, Apply, Loop, condition, one_pass
from tests.operator.reconcile.live_objects import NOW, by_type, observed, report

from phasewise_operator.kinds import DEPLOYMENT, POD, Manifest
from phasewise_operator.observed import Observed
from phasewise_operator.reconcile.conditions import ConditionUpdate, conditions
from phasewise_operator.reconcile.events import changed_conditions, condition_event
from phasewise_operator.reconcile.plan import make_plan
from phasewise_operator.reconcile.status import is_progress, write_pause
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.scaling.signals.kv_evidence import NO_EVIDENCE, FailedPath, KvEvidence, PodProof
from phasewise_operator.scaling.types import FIGURES_SECONDS, Coverage
from phasewise_runtime import contract

ALL = Coverage(1, 1)
PODS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
TEN_PAST_FOUR = 1795407000.0
"""2026-11-23T04:10:00Z"""
WORKS = PodProof(True, TEN_PAST_FOUR, 12288)
FLOWS = KvEvidence(dict.fromkeys(PODS, WORKS), proved_paths=4, paths=4, routers=ALL, proving=True)
ONE_PATH = replace(FLOWS, failed=(FailedPath("prefill-0", "decode-1", "kv_not_loaded"),), proved_paths=3)
ONE_POD = replace(
    FLOWS,
    pods={**FLOWS.pods, "prefill-0": PodProof(False)},
    failed=tuple(FailedPath("prefill-0", decode, "kv_params_missing") for decode in PODS[2:]),
    proved_paths=2,
)
NONE_WORKS = KvEvidence(
    dict.fromkeys(PODS, PodProof(False)),
    tuple(FailedPath(prefill, decode, "kv_not_loaded") for prefill in PODS[:2] for decode in PODS[2:]),
    *(0, 4, ALL, True),
)
MISSING = replace(NONE_WORKS, failed=tuple(replace(path, reason="kv_params_missing") for path in NONE_WORKS.failed))
UNPROVED = KvEvidence(paths=4, routers=ALL, proving=True)
OLD_ROUTER = KvEvidence({"prefill-0": PodProof(True)}, routers=ALL, proving=False)


@pytest.fixture
def updates(make_context: MakeContext) -> Updates:
    return Updates(make_context)


class Updates:
    """Conditions of a service of two and two pods, all ready."""

    def __init__(self, make_context: MakeContext) -> None:
        pool = {"replicas": {"min": 2, "max": 2}}
        self.ctx = make_context(prefill=pool, decode=pool)
        self.plan = make_plan(self.ctx, Observed())

    def of(self, evidence: KvEvidence, before: Manifest | None = None, ready: int = 2) -> list[ConditionUpdate]:
        return report(self.ctx, self.plan, observed(self.plan, ready=ready), [], evidence, before)

    def kv(self, evidence: KvEvidence) -> ConditionUpdate:
        return next(u for u in self.of(evidence) if u.type == "KVTransferReady")

    def status(self, evidence: KvEvidence, before: Manifest | None = None, **slo: Manifest) -> Manifest:
        known = before or {}
        found = conditions(self.of(evidence, known), 1, known, NOW)
        return {"conditions": [c.to_json() for c in found], "slo": slo}


CASES = [
    (FLOWS, "True", "Transferred", "True"),
    (ONE_PATH, "False", "KVPathFailed", "True"),
    (ONE_POD, "False", "KVPathFailed", "True"),
    (NONE_WORKS, "False", "KVTransferFailed", "False"),
    (MISSING, "False", "KVParametersMissing", "False"),
    (UNPROVED, "Unknown", "KVUnproved", "True"),
    (NO_EVIDENCE, "Unknown", "KVUnproved", "True"),
    (OLD_ROUTER, "True", "Transferred", "True"),
    (replace(OLD_ROUTER, pods={"prefill-0": PodProof(False)}), "False", "KVParametersMissing", "False"),
    (replace(NONE_WORKS, failed=()), "False", "KVTransferFailed", "False"),
    (
        replace(NONE_WORKS, pods={**NONE_WORKS.pods, "decode-0": WORKS}),  # with a prefill pod that has just gone
        *("False", "KVTransferFailed", "False"),
    ),
]


@pytest.mark.parametrize(("evidence", "status", "reason", "ready"), CASES)
def test_kv_transfer_is_ready_on_evidence_alone(
    evidence: KvEvidence, status: str, reason: str, ready: str, updates: Updates
) -> None:
    found = by_type(updates.of(evidence))
    assert found["KVTransferReady"] == (status, reason)
    assert found["Ready"] == (ready, "Serving" if ready == "True" else reason)


AGE = "last proved 2026-11-23T04:10:00Z"
CANARY = "the canary moved 12288 bytes from prefill to decode, and its answer equals decode alone"
ROUND = "requests are routed round that, so that KV is passed to decode all the same"
PATH_PAGE = "(at fault: the engine; see docs/runbooks/KVPathFailed.md)"
FAILS = "decode cannot load the KV"
SENTENCES = {
    f"KV flows on 4 of 4 paths; {CANARY}; {AGE}": FLOWS,
    f"KV flows on 2 of 4 paths, and 2 were not used yet; {CANARY}; {AGE}": replace(FLOWS, proved_paths=2),
    "the last KV transfer of every pod that had one worked": OLD_ROUTER,
    f"KV does not flow on 1 of 4 paths, from prefill-0 to decode-1: {FAILS}; {ROUND}; {AGE} {PATH_PAGE}": ONE_PATH,
    f"KV does not flow on 4 of 4 paths, from prefill-0 to decode-0: {FAILS}, from prefill-0 to decode-1: {FAILS}, from "
    f"prefill-1 to decode-0: {FAILS}, and 1 more; decode computes the prompts itself: requests succeed, and TTFT is "
    "that of a service without prefill (at fault: the engine; see docs/runbooks/KVTransferFailed.md)": NONE_WORKS,
    f"KV does not flow between prefill-1 and any other pod; {ROUND}; {AGE} {PATH_PAGE}": replace(
        FLOWS, pods={**FLOWS.pods, "prefill-1": PodProof(False)}
    ),
    "no KV has been handed over yet: the routers try each new pair of pods before it takes traffic": UNPROVED,
}


@pytest.mark.parametrize(("sentence", "evidence"), SENTENCES.items())
def test_the_message_has_the_evidence_and_its_age(sentence: str, evidence: KvEvidence, updates: Updates) -> None:
    assert updates.kv(evidence).full_message() == sentence


def test_a_reason_that_this_operator_does_not_know_is_shown_as_it_is(updates: Updates) -> None:
    odd = replace(ONE_PATH, failed=(FailedPath("prefill-0", "decode-1", "checksum_differs"),))
    assert "to decode-1: checksum differs;" in updates.kv(odd).message


def test_what_pods_that_are_gone_did_does_not_count(updates: Updates) -> None:
    gone = KvEvidence({"gone": PodProof(False)}, (FailedPath("gone", "decode-0", "timeout"),), 0, 1, ALL, True)
    assert by_type(updates.of(gone))["KVTransferReady"] == ("Unknown", "KVUnproved")
    among = replace(FLOWS, failed=(FailedPath("prefill-0", "gone", "timeout"),))
    assert by_type(updates.of(among))["KVTransferReady"] == ("True", "Transferred")
    now = observed(updates.plan, ready=2)
    leaving = replace(now, pods=tuple(replace(p, deleting=p.name == "prefill-0") for p in now.pods))
    found = by_type(report(updates.ctx, updates.plan, leaving, [], ONE_POD))
    assert found["KVTransferReady"] == ("True", "Transferred")


def test_ready_says_where_to_read_of_paths_that_fail(updates: Updates) -> None:
    ready = next(u for u in updates.of(ONE_PATH) if u.type == "Ready")
    assert ready.message.endswith("KV transfer fails between some pods, as the condition KVTransferReady says")


def test_a_path_that_fails_is_a_warning_event_and_what_ready_says_is_one_event(updates: Updates) -> None:
    live = {"apiVersion": "v", "kind": "k", "metadata": {"name": "chat", "namespace": "default", "uid": "u"}}
    before = updates.status(FLOWS)
    (event,) = (condition_event(live, u, NOW) for u in changed_conditions(updates.of(ONE_PATH), before))
    assert (event["type"], event["reason"]) == ("Warning", "KVPathFailed")
    assert [u.type for u in changed_conditions(updates.of(NONE_WORKS), before)] == ["Ready"]
    assert changed_conditions(updates.of(FLOWS), updates.status(UNPROVED)) == []


# --- an operator that has just begun -------------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", [FLOWS, ONE_PATH, NONE_WORKS, MISSING])
def test_what_was_known_stays_until_an_operator_that_begins_has_read_the_routers(
    evidence: KvEvidence, updates: Updates
) -> None:
    before = updates.status(evidence)
    assert updates.status(NO_EVIDENCE, before)["conditions"] == before["conditions"]
    assert updates.status(KvEvidence(routers=Coverage(0, 1)), before)["conditions"] == before["conditions"]
    assert by_type(updates.of(UNPROVED, before))["KVTransferReady"] == ("Unknown", "KVUnproved")


def test_ready_says_what_was_known_of_kv_transfer_when_nothing_else_is_wrong_any_more(updates: Updates) -> None:
    starting = updates.of(NO_EVIDENCE, ready=0)
    stored = [u for u in starting if u.type == "Ready"] + [updates.kv(NONE_WORKS)]
    before = {"conditions": [c.to_json() for c in conditions(stored, 1, {}, NOW)]}
    ready = next(c for c in conditions(updates.of(NO_EVIDENCE, before), 1, before, NOW) if c.type == "Ready")
    assert ready.reason == "KVTransferFailed"
    assert ready.message.count("see docs/runbooks/KVTransferFailed.md") == 1


# --- what is written, and when -------------------------------------------------------------------------------------


def later(evidence: KvEvidence, seconds: float) -> KvEvidence:
    pods = {n: replace(p, proved_at=p.proved_at and p.proved_at + seconds) for n, p in evidence.pods.items()}
    return replace(evidence, pods=pods)


PAUSES = [
    (FLOWS, later(FLOWS, 59), None),
    (FLOWS, later(FLOWS, 60), FIGURES_SECONDS),
    (ONE_PATH, later(ONE_PATH, 59), None),
    (ONE_PATH, later(ONE_PATH, 60), FIGURES_SECONDS),
    (replace(FLOWS, proved_paths=2), FLOWS, FIGURES_SECONDS),
    (FLOWS, ONE_PATH, 0.0),
    (ONE_PATH, FLOWS, 0.0),
    (ONE_PATH, ONE_POD, 5.0),
    (UNPROVED, FLOWS, 5.0),
]


@pytest.mark.parametrize(("before", "after", "pause"), PAUSES)
def test_a_failure_is_written_at_once_and_the_time_of_the_last_proof_once_a_minute(
    before: KvEvidence, after: KvEvidence, pause: float | None, updates: Updates
) -> None:
    stored = updates.status(before)
    assert write_pause(stored, updates.status(after, stored)) == pause


def test_the_first_proof_is_a_step_of_the_start_and_a_first_failure_is_not(updates: Updates) -> None:
    stored = updates.status(UNPROVED)
    assert is_progress(stored, updates.status(FLOWS, stored))
    assert not is_progress(stored, updates.status(ONE_PATH, stored))


# --- a pass --------------------------------------------------------------------------------------------------------


def all_pods_come_up(api: Api, worker: Worker) -> list[str]:
    """Names of the engine pods: one of each Deployment."""
    names: list[str] = []
    for (kind, name), live in list(api.objects.items()):
        labels = live["metadata"].get("labels", {})
        if kind != "Deployment" or labels[contract.LABEL_ROLE] == contract.ROUTER:
            continue
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
        live["status"] = {"observedGeneration": 1, **counts}
        api.version += 1
        live["metadata"]["resourceVersion"] = str(api.version)
        worker.reconciler.store.put(DEPLOYMENT, copy.deepcopy(live))
        meta = {"namespace": "default", "name": f"{name}-0", "uid": f"{name}-0", "resourceVersion": "1"}
        status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        worker.reconciler.store.put(POD, {"metadata": {**meta, "labels": labels}, "status": status})
        names.append(f"{name}-0")
    return names


async def test_a_pass_asks_for_the_evidence_for_the_rollout_and_for_the_status(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    recommender = cast("Loop", worker.reconciler.recommender)
    user_applies(prefill={})
    await one_pass(worker)
    old = all_pods_come_up(api, worker)
    recommender.evidence = KvEvidence(dict.fromkeys(old, WORKS), (), 1, 1, ALL, True)
    user_applies(generation=2, prefill={}, engine={"image": "other:2"})
    await one_pass(worker)
    new = sorted(set(all_pods_come_up(api, worker)) - set(old))
    worker.queue.add(KEY)
    await one_pass(worker)
    assert sum(kind == "Deployment" for kind, _ in api.objects) == 5, "both revisions, and the router"
    messages = {c["type"]: c["message"] for c in api.objects["InferenceService", "chat"]["status"]["conditions"]}
    assert (
        "1 new prefill pods and 1 new decode pods are ready and wait for the routers' proof" in messages["Reconciling"]
    )
    assert condition(api, "KVTransferReady") == ("True", "Transferred")
    recommender.evidence = KvEvidence(dict.fromkeys([*old, *new], WORKS), (), 2, 2, ALL, True)
    worker.queue.add(KEY)
    await one_pass(worker)
    assert sum(kind == "Deployment" for kind, _ in api.objects) == 3
