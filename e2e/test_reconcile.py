"""The operator at work: drift put right, a changed spec rolled, silence when idle, an API server that goes away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone

import pytest

from e2e import cluster, kube, operators
from e2e.conftest import Service
from e2e.load import enough, load
from phasewise_runtime import contract

DRIFT_SECONDS = 5
EDITS: list[tuple[str, str, str]] = [
    ("deployment", "chat-router", '{"spec":{"replicas":1}}'),
    ("service", "chat", '{"spec":{"ports":[{"port":80,"name":"http","targetPort":9}]}}'),
    ("serviceaccount", "chat-router", '{"automountServiceAccountToken":true}'),
    ("role", "chat-router", '{"rules":[]}'),
    ("rolebinding", "chat-router", '{"subjects":[]}'),
    ("pdb", "chat-prefill", '{"spec":{"maxUnavailable":0}}'),
]

QUIET = 45
"""Seconds. Figures of traffic that has ended are written once more, half a minute after the last write."""


def owned(kind: str, name: str, namespace: str) -> str:
    """All of an object that anybody could edit, as text."""
    live = kube.get(kind, name, namespace)
    for key in ("resourceVersion", "generation", "managedFields", "uid", "creationTimestamp"):
        live["metadata"].pop(key, None)
    live.get("spec", {}).pop("clusterIP", None)
    live.get("spec", {}).pop("clusterIPs", None)
    live.get("metadata", {}).get("annotations", {}).pop("deployment.kubernetes.io/revision", None)
    live.pop("status", None)
    return json.dumps(live, sort_keys=True)


def engine_deployment(service: Service) -> str:
    selector = f"{contract.LABEL_SERVICE}={service.name},{contract.LABEL_ROLE}=prefill"
    return kube.find("deployment", selector, service.namespace)[0]["metadata"]["name"]


@pytest.mark.parametrize(("kind", "name", "patch"), EDITS, ids=[kind for kind, _, _ in EDITS])
def test_an_edit_by_hand_is_put_right(kind: str, name: str, patch: str, service: Service) -> None:
    before = owned(kind, name, service.namespace)
    cluster.kubectl("-n", service.namespace, "patch", kind, name, "--type=merge", "-p", patch)
    kube.wait_for(f"{kind} as it was", lambda: owned(kind, name, service.namespace) == before, DRIFT_SECONDS, 0.1)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name, _ in EDITS if kind != "deployment"])
def test_a_deleted_child_comes_back(kind: str, name: str, service: Service) -> None:
    before = kube.get(kind, name, service.namespace)["metadata"]["uid"]
    cluster.kubectl("-n", service.namespace, "delete", kind, name, "--wait=false")

    def back() -> bool:
        listed = kube.find(kind, f"{contract.LABEL_SERVICE}={service.name}", service.namespace)
        return any(o["metadata"]["name"] == name and o["metadata"]["uid"] != before for o in listed)

    kube.wait_for(f"{kind} {name} back", back, DRIFT_SECONDS, 0.1)
    service.expose()  # a Service that was made anew has another address; DNS follows it, a forward is told
    service.wait_ready()


def test_an_edited_and_a_deleted_deployment_come_back(service: Service) -> None:
    """The router's, so that no engine has to start anew; an engine's by an edit that starts none."""
    cluster.kubectl("-n", service.namespace, "delete", "deployment", "chat-router", "--cascade=orphan", "--wait=false")
    kube.wait_for(
        "a router Deployment", lambda: kube.find("deployment", "phasewise.dev/role=router", service.namespace), 5
    )
    name = engine_deployment(service)
    cluster.kubectl("-n", service.namespace, "label", "deployment", name, "phasewise.dev/role=edited", "--overwrite")
    kube.wait_for("the label as it was", lambda: engine_deployment(service) == name, DRIFT_SECONDS, 0.1)
    service.wait_ready()


def test_what_others_add_is_kept(service: Service) -> None:
    cluster.kubectl("-n", service.namespace, "label", "service", "chat", "team=a")
    cluster.kubectl(
        "-n", service.namespace, "patch", "service", "chat", "--type=merge", "-p", '{"spec":{"sessionAffinity":"None"}}'
    )
    assert kube.get("service", "chat", service.namespace)["metadata"]["labels"]["team"] == "a"


def writes_since(start: float) -> list[str]:
    """But for the lease, which shows that the record is of this operator."""
    found = [what for _, what in operators.writes(start)]
    assert any("/leases/" in what for what in found), "the record does not show the operator at all"
    return [what for what in found if "/leases/" not in what]


def test_idle_means_no_write_but_the_lease(service: Service) -> None:
    service.wait_ready()

    def now() -> float:
        return datetime.now(timezone.utc).timestamp()

    began = now()
    kube.wait_for("a quiet time", lambda: now() > began + QUIET and not writes_since(now() - QUIET), 180, 1)
    start = now()
    time.sleep(60)  # the promise is about a stretch of time
    assert writes_since(start) == []


def test_a_changed_spec_is_rolled_without_a_lost_request(service: Service) -> None:
    """A change of the decode pool alone: its fingerprint stays, the prefill pool is left in peace."""
    before = service.wait_ready()["status"]
    template = {"spec": {"decode": {"template": {"metadata": {"annotations": {"e2e": "rolled"}}}}}}
    with load(service.url, service.model, workers=2) as running:
        kube.patch("infsvc", service.name, template, service.namespace)
        after = service.wait_ready(600)["status"]
        enough(running, 4)
    assert after["decode"]["revision"] != before["decode"]["revision"]
    assert after["prefill"]["revision"] == before["prefill"]["revision"]
    assert after["fingerprint"] == before["fingerprint"]
    assert [(o.answer.error, o.answer.finish_reason) for o in running.failed] == []
    selector = f"{contract.LABEL_SERVICE}={service.name},{contract.LABEL_ROLE}=decode"
    kube.wait_for("the old revision gone", lambda: len(kube.find("deployment", selector, service.namespace)) == 1, 120)


def gone_and_back(seconds: float) -> None:
    cluster.selected().stop_component("kube-apiserver", at_once=True)
    time.sleep(seconds)  # the outage itself
    cluster.selected().start_component("kube-apiserver")


def frozen_and_thawed(seconds: float) -> None:
    """Watches that are dead without an end, and calls that hang instead of being refused."""
    cluster.selected().freeze_component("kube-apiserver")
    time.sleep(seconds)  # the outage itself
    cluster.selected().thaw_component("kube-apiserver")


@pytest.mark.parametrize("outage", [gone_and_back, frozen_and_thawed])
def test_an_api_server_away_for_a_minute_is_survived(outage: Callable[[float], None], service: Service) -> None:
    """Traffic does not notice; one leads and reconciles within 20 s of its return."""
    patch = json.dumps({"spec": {"maxUnavailable": 0}})
    with load(service.url, service.model, workers=2) as running:
        enough(running, 2)
        answered = len(running.outcomes)
        outage(60)
        back = time.monotonic()
        assert len(running.outcomes) > answered, "requests are answered during the outage"
        cluster.kubectl("-n", service.namespace, "patch", "pdb", "chat-prefill", "--type=merge", "-p", patch)
        kube.wait_for(
            "drift put right again",
            lambda: kube.get("pdb", "chat-prefill", service.namespace)["spec"]["maxUnavailable"] == 1,
            20 - (time.monotonic() - back),
            0.2,
        )
        print(f"{outage.__name__}: reconciled {time.monotonic() - back:.1f} s after the API server's return")
    assert [(o.answer.error, o.answer.finish_reason) for o in running.failed] == []
