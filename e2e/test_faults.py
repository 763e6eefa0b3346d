"""No request is lost while a prefill pod, the operator, or the way between two pods goes away under load."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

import pytest

from e2e import cluster, kube
from e2e.cluster.progress import WaitTimeoutError, wait_for
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.load import Load, delete_pod, load, restarts, wait_both_phases, wait_for_answers
from e2e.operators import apart, kill, leader
from e2e.reference import Reference
from e2e.service import Service
from phasewise_runtime import contract

EXPLICIT = ("{", "5")
"""An error event of the stream, or an HTTP status: not a connection that just ended."""
CRASH_COUNTED_SECONDS = 30
SEEN_SECONDS = 20
"""The aim is 10. Here the load takes both cores, and the canary's answer by decode alone, which it is compared with, a
second or more of them."""
PROVED_AGAIN_SECONDS = 60
"""A path that failed is tried again after 1 s, doubling to 30."""
LEAD_AGAIN_SECONDS = 90
"""A killed holder's lease has to run out first, 15 s; then it depends on how busy the machine is."""


def crashes(chat: Service, before: dict[str, tuple[int, str]]) -> dict[str, str]:
    """Decode pods whose engine was started again since, and how it had ended."""
    after = restarts(chat.name, contract.DECODE, chat.namespace)
    return {pod: how for pod, (count, how) in after.items() if count > before.get(pod, (0, ""))[0]}


def assert_nothing_lost(running: Load, chat: Service, reference: Reference, before: dict[str, tuple[int, str]]) -> None:
    """A segfault of the decode engine (vllm#49238) is reported and its streams end in an error: that is not ours."""
    crashed = crashes(chat, before)
    if running.failed and not crashed:  # the kubelet counts a crash when the next container starts
        with suppress(WaitTimeoutError):
            crashed = wait_for("the failures' cause", lambda: crashes(chat, before), CRASH_COUNTED_SECONDS)
    assert all("egfault" in how or "SIGSEGV" in how for how in crashed.values()), crashed
    failed = running.failed
    if crashed:
        print(f"decode engine crashed by itself: {crashed}; {len(failed)} requests ended with an explicit error")
        assert all(o.answer.error and o.answer.error.startswith(EXPLICIT) for o in failed)
        wait_for("decode ready again", lambda: all(map(kube.is_ready, chat.pods(contract.DECODE))), 400)
    else:
        assert [(o.request.path, o.answer.error, o.answer.finish_reason) for o in failed] == []
    succeeded = [o for o in running.outcomes if not o.answer.error]
    assert len(succeeded) >= 8
    assert reference.differences(succeeded) == []


def lose_prefill_pod(chat: Service, running: Load, *, force: bool) -> None:
    """Delete a prefill pod with requests in it, and wait until it is gone and others were answered."""
    pod = chat.pods(contract.PREFILL)[0]["metadata"]["name"]
    in_flight = wait_both_phases(chat.name, chat.namespace, pod)
    delete_pod(pod, chat.namespace, force=force)
    print(f"prefill pod {pod} deleted with {in_flight} in flight")
    wait_for(f"{pod} gone", lambda: pod not in kube.read("-n", chat.namespace, "pods", "-o", "name"), 180)
    wait_for_answers(running, 8)


def lose_leader(chat: Service, running: Load, *, delete: bool) -> None:
    """Kill the leader or delete its pod, and wait until an operator leads, repairs drift, and others were answered."""
    first = wait_for("a leader", leader)
    in_flight = wait_both_phases(chat.name, chat.namespace)
    if delete:
        delete_pod(first, OPERATOR_NAMESPACE, force=True)
    else:
        kill(first)
    print(f"operator {first} {'deleted' if delete else 'killed'} with {in_flight} in flight")
    began, old = monotonic(), budget_uid(chat)

    def leads_again() -> bool:
        """The container that was killed is started again, and its pod may lead as before; a deleted pod may not."""
        pod = leader()
        return bool(pod) and (pod != first or not delete)

    cluster.kubectl("-n", chat.namespace, "delete", "pdb", f"{chat.name}-prefill")
    what = "an operator that leads and makes a deleted child again"
    wait_for(what, lambda: leads_again() and budget_uid(chat) not in ("", old), LEAD_AGAIN_SECONDS)
    print(f"led and repaired after {monotonic() - began:.1f} s")
    wait_for_answers(running, 8)


def budget_uid(chat: Service) -> str:
    selector = f"{contract.LABEL_SERVICE}={chat.name},{contract.LABEL_ROLE}={contract.PREFILL}"
    found = kube.find("pdb", selector, chat.namespace)
    return found[0]["metadata"]["uid"] if found else ""


@pytest.mark.parametrize("number", range(5))
def test_a_lost_prefill_pod_and_a_lost_leader_lose_no_request(number: int, chat: Service, reference: Reference) -> None:
    """Three prefill pods drain and two are killed; three leaders are killed and two deleted.

    Three of the leaders go while a new prefill pod starts, which takes as long as the lease. Two, one killed and one
    deleted, go while all pods are ready.
    """
    before = restarts(chat.name, contract.DECODE, chat.namespace)
    with load(chat.url, chat.model) as running:
        lose_prefill_pod(chat, running, force=number >= 3)
    assert_nothing_lost(running, chat, reference, before)
    if number < 2:
        chat.wait_ready()
    before = restarts(chat.name, contract.DECODE, chat.namespace)
    with load(chat.url, chat.model) as running:
        lose_leader(chat, running, delete=number % 2 == 1)
    chat.wait_ready()
    assert_nothing_lost(running, chat, reference, before)


def test_a_way_between_two_pods_that_goes_dead_is_seen_and_routed_round(chat: Service, reference: Reference) -> None:
    """The transfer hangs, on connections that stay open: neither engine reports anything."""
    wait_for("KV that flows", lambda: chat.condition("KVTransferReady")[:2] == ("True", "Transferred"), 120)
    (decode,) = (p["metadata"]["name"] for p in chat.pods(contract.DECODE))
    prefill = chat.pods(contract.PREFILL)[0]["metadata"]["name"]
    before = restarts(chat.name, contract.DECODE, chat.namespace)
    with load(chat.url, chat.model) as running:
        wait_for_answers(running, 8)
        with apart(prefill, decode, chat.namespace):
            began = monotonic()
            seen = wait_for("what is wrong in status", lambda: failing_path(chat), SEEN_SECONDS + 20, every=0.2)
            seconds = monotonic() - began
            print(f"seen after {seconds:.1f} s: {seen}")
            wait_for_answers(running, 16)
        wait_for("KV that flows again", lambda: chat.condition("KVTransferReady")[0] == "True", PROVED_AGAIN_SECONDS)
        wait_for_answers(running, 8)
    assert prefill in seen
    assert decode in seen
    assert seconds < SEEN_SECONDS
    assert_nothing_lost(running, chat, reference, before)


def failing_path(chat: Service) -> str:
    """What KVTransferReady says of a path that fails while another works; empty where all is well."""
    status, reason, message = chat.condition("KVTransferReady")
    return message if (status, reason) == ("False", "KVPathFailed") else ""
