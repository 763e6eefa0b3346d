"""The operator at work: no write when idle, drift repaired, a changed spec rolled out, an API server that goes away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import cluster, kube, operators, service
from e2e.cluster.progress import wait_for
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.deploy import OPERATOR
from e2e.load import load, wait_for_answers
from e2e.service import CHILDREN, MADE_OF_CHILDREN, NAMESPACE, Service
from phasewise_operator.kinds import CHILD_KINDS
from phasewise_operator.render.context import digest
from phasewise_runtime import contract

DRIFT_SECONDS = 5
ROUTER_ROLE = f"{OPERATOR_NAMESPACE}:{OPERATOR}:router"
"""The chart's ClusterRole that routers are bound to."""
EDITS: list[tuple[str, str, str]] = [
    ("deployment", "chat-router", '{"spec":{"replicas":1}}'),
    ("service", "chat", '{"spec":{"ports":[{"port":80,"name":"http","targetPort":9}]}}'),
    ("serviceaccount", "chat-router", '{"automountServiceAccountToken":true}'),
    ("rolebinding", f"chat-router-{digest(ROUTER_ROLE, 8)}", '{"subjects":[]}'),
    ("networkpolicy", "chat-engine", '{"spec":{"ingress":[]}}'),
    ("pdb", "chat-router", '{"spec":{"maxUnavailable":0}}'),
]

OUTAGE_SECONDS = 60
SETTLE_SECONDS = 45
"""Figures of traffic that has ended are written once more, half a minute after the last write."""
IDLE_SECONDS = 60


def test_an_idle_service_causes_no_write_but_the_lease(chat: Service) -> None:
    def writes_since(start: float) -> list[str]:
        found = operators.writes(start)
        assert any("/leases/" in what for _, what in found), "the audit log does not show the operator at all"
        return [what for _, what in found if "/leases/" not in what and f"/namespaces/{NAMESPACE}/" not in what]

    chat.wait_ready()
    wait_for("a service that has settled", lambda: not writes_since(time.time() - SETTLE_SECONDS), 240, 1)
    began = time.time()
    time.sleep(IDLE_SECONDS)  # the promise is about a stretch of time
    assert writes_since(began) == []


def test_a_second_release_stands_by_and_says_so(phasewise: None, tmp_path: Path) -> None:
    """Both look after all namespaces: the one that was there first leads on, and the other writes nothing but that."""
    second = operators.OperatorProcess("second", "default", tmp_path / "second.log", "second-phasewise-operator")
    try:
        said = second.wait_for("standing by: .*")
        assert f"{operators.OPERATOR} in namespace {operators.NAMESPACE} looks after all namespaces" in said
        wait_for("an Event", lambda: [e for e in kube.find("events", namespace="default") if e.get("message") == said])
    finally:
        second.end()
    assert not [one for one in kube.find("leases", namespace="default") if one["metadata"]["name"].startswith("second")]


def editable(kind: str, name: str, namespace: str) -> str:
    """All of an object that a user could edit, as text."""
    live = kube.get(kind, name, namespace)
    for key in ("resourceVersion", "generation", "managedFields", "uid", "creationTimestamp"):
        live["metadata"].pop(key, None)
    live.get("spec", {}).pop("clusterIP", None)
    live.get("spec", {}).pop("clusterIPs", None)
    live.get("metadata", {}).get("annotations", {}).pop("deployment.kubernetes.io/revision", None)
    live.pop("status", None)
    return json.dumps(live, sort_keys=True)


@pytest.mark.parametrize(("kind", "name", "patch"), EDITS, ids=[kind for kind, _, _ in EDITS])
def test_an_edited_child_is_repaired(kind: str, name: str, patch: str, chat: Service) -> None:
    before = editable(kind, name, chat.namespace)
    cluster.kubectl("-n", chat.namespace, "patch", kind, name, "--type=merge", "-p", patch)
    wait_for(f"{kind} as it was", lambda: editable(kind, name, chat.namespace) == before, DRIFT_SECONDS, 0.1)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name, _ in EDITS if kind != "deployment"])
def test_a_deleted_child_comes_back(kind: str, name: str, chat: Service) -> None:
    before = kube.get(kind, name, chat.namespace)["metadata"]["uid"]
    cluster.kubectl("-n", chat.namespace, "delete", kind, name, "--wait=false")

    def back() -> bool:
        listed = kube.find(kind, f"{contract.LABEL_SERVICE}={chat.name}", chat.namespace)
        return any(o["metadata"]["name"] == name and o["metadata"]["uid"] != before for o in listed)

    wait_for(f"{kind} {name} back", back, DRIFT_SECONDS, 0.1)
    # A Service that was made again has another address: DNS follows it, the forward is set again by the fixture.


def test_an_edited_and_a_deleted_deployment_come_back(chat: Service) -> None:
    """The router's, so that no engine has to start again; an engine's by an edit that starts none."""

    def deployments(role: str) -> list[str]:
        selector = f"{contract.LABEL_SERVICE}={chat.name},{contract.LABEL_ROLE}={role}"
        return [found["metadata"]["name"] for found in kube.find("deployment", selector, chat.namespace)]

    delete = ("delete", "deployment", f"{chat.name}-router", "--cascade=orphan", "--wait=false")
    cluster.kubectl("-n", chat.namespace, *delete)
    wait_for("a router Deployment", lambda: deployments(contract.ROUTER), DRIFT_SECONDS)
    (name,) = deployments(contract.PREFILL)
    edit = ("label", "deployment", name, f"{contract.LABEL_ROLE}=edited", "--overwrite")
    cluster.kubectl("-n", chat.namespace, *edit)
    wait_for("the label as it was", lambda: deployments(contract.PREFILL) == [name], DRIFT_SECONDS, 0.1)


def test_fields_that_others_add_are_kept(chat: Service) -> None:
    cluster.kubectl("-n", chat.namespace, "label", "service", "chat", "team=a")
    cluster.kubectl(
        "-n", chat.namespace, "patch", "service", "chat", "--type=merge", "-p", '{"spec":{"sessionAffinity":"None"}}'
    )
    assert kube.get("service", "chat", chat.namespace)["metadata"]["labels"]["team"] == "a"


def test_a_changed_spec_is_rolled_out_without_a_failed_request(chat: Service) -> None:
    """A change of the decode pool only: its fingerprint stays, and the prefill pool is not rolled."""
    before = chat.wait_ready()["status"]
    template = {"spec": {"decode": {"template": {"metadata": {"annotations": {"e2e": "rolled"}}}}}}
    with load(chat.url, chat.model, workers=2) as running:
        kube.patch("infsvc", chat.name, template, chat.namespace)
        after = chat.wait_ready(600)["status"]
        wait_for_answers(running, 4)
    assert after["decode"]["revision"] != before["decode"]["revision"]
    assert after["prefill"]["revision"] == before["prefill"]["revision"]
    assert after["fingerprint"] == before["fingerprint"]
    assert [(o.answer.error, o.answer.finish_reason) for o in running.failed] == []
    selector = f"{contract.LABEL_SERVICE}={chat.name},{contract.LABEL_ROLE}=decode"
    wait_for("the old revision gone", lambda: len(kube.find("deployment", selector, chat.namespace)) == 1, 120)


def stopped(seconds: float) -> None:
    cluster.selected().stop_component("kube-apiserver", at_once=True)
    time.sleep(seconds)  # the outage itself
    cluster.selected().start_component("kube-apiserver")


def frozen(seconds: float) -> None:
    """Watches get no event and no end, and requests hang instead of being refused."""
    cluster.selected().freeze_component("kube-apiserver")
    time.sleep(seconds)  # the outage itself
    cluster.selected().thaw_component("kube-apiserver")


@pytest.mark.parametrize("outage", [stopped, frozen])
def test_requests_are_answered_without_the_api_server_and_drift_is_repaired_after_it(
    outage: Callable[[float], None], chat: Service
) -> None:
    """An operator leads and reconciles within 20 s of the API server's return."""
    name = f"{chat.name}-router"
    with load(chat.url, chat.model, workers=2) as running:
        wait_for_answers(running, 2)
        answered = len(running.outcomes)
        outage(OUTAGE_SECONDS)
        back = time.monotonic()
        assert len(running.outcomes) > answered, "requests are answered during the outage"
        kube.patch("pdb", name, {"spec": {"maxUnavailable": 0}}, chat.namespace)
        wait_for(
            "drift repaired again",
            lambda: kube.get("pdb", name, chat.namespace)["spec"]["maxUnavailable"] == 1,
            20 - (time.monotonic() - back),
            0.2,
        )
        print(f"{outage.__name__}: reconciled {time.monotonic() - back:.1f} s after the API server's return")
    assert [(o.answer.error, o.answer.finish_reason) for o in running.failed] == []


def test_a_deleted_service_leaves_nothing(namespace: str) -> None:
    """Without engines, to be quick: the fixtures see the same of Ready services when they delete them."""
    manifest = service.quickstart("deleted", namespace)
    for role in contract.ENGINE_ROLES:
        manifest["spec"][role]["replicas"] = {"min": 0, "max": 1}
    manifest["spec"]["scaling"]["mode"] = "External"
    service.apply(manifest)
    selector = f"{contract.LABEL_SERVICE}=deleted"
    kinds = {kind.name for kind in CHILD_KINDS} | set(MADE_OF_CHILDREN)

    def all_made() -> bool:
        found = kube.find(CHILDREN, selector, namespace)
        running = [child for child in found if child.get("status", {}).get("phase") == "Running"]
        return kinds <= {child["kind"] for child in found} and len(running) == 1

    wait_for("every kind of child, and a running router", all_made)
    Service("deleted", namespace, "", "").delete()
