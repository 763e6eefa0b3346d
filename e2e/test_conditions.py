"""What only the operator can check: Stalled with a reason, and no longer so when its cause is gone.

The services are made at once, since each waits for something else and none needs much of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
import yaml

from e2e import cluster, kube, service
from e2e.cluster.progress import wait_for
from e2e.service import NAMESPACE

SECONDS = 120
NAMED_SECONDS = 10
"""From a cause to the condition that names it."""


def aggregated(name: str) -> kube.Object:
    """One pool with a single engine pod, which asks for little: all of them are on the node at once."""
    manifest = service.quickstart(name, NAMESPACE)
    del manifest["spec"]["prefill"]
    manifest["spec"]["decode"]["resources"]["requests"]["cpu"] = "50m"
    return manifest


def without_secret() -> kube.Object:
    manifest = aggregated("no-secret")
    manifest["spec"]["router"]["apiKeys"] = {"secretRef": {"name": "my-keys"}}
    manifest["spec"]["decode"]["replicas"] = {"min": 0, "max": 1}
    return manifest


def without_model() -> kube.Object:
    manifest = aggregated("no-model")
    manifest["spec"]["model"]["uri"] = "file:///opt/models/nowhere"
    return manifest


def without_image() -> kube.Object:
    manifest = aggregated("no-image")
    manifest["spec"]["engine"]["image"] = "phasewise/nothing:here"
    return manifest


def with_unknown_argument() -> kube.Object:
    manifest = aggregated("bad-argument")
    manifest["spec"]["engine"]["args"]["foo"] = "bar"
    return manifest


def with_typo() -> kube.Object:
    manifest = aggregated("typo")
    manifest["spec"]["decode"]["replicas"] = {"min": 0, "max": 1}
    manifest["spec"]["decode"]["template"] = {"spec": {"tolerations": [{"keyz": "gpu"}]}}
    return manifest


def with_taken_name() -> kube.Object:
    manifest = aggregated("taken")
    manifest["spec"]["decode"]["replicas"] = {"min": 0, "max": 1}
    return manifest


@pytest.fixture(scope="module", autouse=True)
def services(phasewise: None) -> Iterator[None]:
    made = (without_secret, without_model, without_image, with_unknown_argument, with_taken_name)
    manifests = [make() for make in made]
    service.make_namespace(NAMESPACE)
    cluster.kubectl("-n", NAMESPACE, "create", "service", "clusterip", "taken", "--tcp=1:1")
    kube.apply(yaml.safe_dump_all(manifests), NAMESPACE)
    yield
    names = ["typo", *(manifest["metadata"]["name"] for manifest in manifests)]
    options = ("--cascade=foreground", "--ignore-not-found", "--timeout=120s")
    cluster.kubectl("-n", NAMESPACE, "delete", "infsvc", *names, *options)
    for kind, name in (("secret", "my-keys"), ("service", "taken")):
        cluster.kubectl("-n", NAMESPACE, "delete", kind, name, "--ignore-not-found")


def stalled(name: str, expected: str = "") -> Callable[[], str | None]:
    """The message of Stalled where it is True with the expected reason; without one, with any."""

    def probe() -> str | None:
        status, reason, message = kube.condition(kube.get("infsvc", name, NAMESPACE), "Stalled")
        return message if status == "True" and expected in ("", reason) else None

    return probe


def no_longer_stalled(name: str) -> Callable[[], bool]:
    return lambda: kube.condition(kube.get("infsvc", name, NAMESPACE), "Stalled")[0] == "False"


def test_a_missing_secret_stalls_the_service_until_it_is_there() -> None:
    message = wait_for("Stalled", stalled("no-secret", "SecretNotFound"), SECONDS)
    assert "my-keys" in message
    assert kube.condition(kube.get("infsvc", "no-secret", NAMESPACE), "Ready")[1] == "SecretNotFound"
    cluster.kubectl("-n", NAMESPACE, "create", "secret", "generic", "my-keys", "--from-literal=first=abc")
    wait_for("no longer stalled", no_longer_stalled("no-secret"), 180)


def test_a_missing_model_stalls_the_service_until_another_is_named() -> None:
    message = wait_for("Stalled", stalled("no-model", "ModelUnavailable"), SECONDS)
    assert "/opt/models/nowhere" in message
    kube.patch("infsvc", "no-model", {"spec": {"model": {"uri": "file:///opt/models/tiny"}}}, NAMESPACE)
    wait_for("no longer stalled", no_longer_stalled("no-model"), SECONDS)


def test_a_missing_image_stalls_the_service() -> None:
    wait_for("Stalled", stalled("no-image", "ImageUnavailable"), SECONDS)


def seconds_until_stalled(name: str, since: str) -> float:
    known = {c["type"]: c for c in kube.get("infsvc", name, NAMESPACE)["status"]["conditions"]}
    later = datetime.fromisoformat(known["Stalled"]["lastTransitionTime"]) - datetime.fromisoformat(since)
    return later.total_seconds()


def events_of(name: str) -> list[str]:
    found = kube.find("events.events.k8s.io", namespace=NAMESPACE)
    return [event.get("note", "") for event in found if event["regarding"].get("name") == name]


def test_an_engine_argument_that_vllm_refuses_is_named_as_soon_as_the_engine_ends() -> None:
    message = wait_for("Stalled", stalled("bad-argument", "InvalidEngine"), SECONDS)
    assert "unrecognized arguments: --foo" in message.splitlines()[0]
    assert any("unrecognized arguments: --foo" in note.splitlines()[0] for note in events_of("bad-argument"))
    (engine,) = kube.pods("bad-argument", "decode", NAMESPACE)
    (status,) = engine["status"]["containerStatuses"]
    ended = status["state"].get("terminated") or status["lastState"]["terminated"]
    if status["restartCount"] <= 1:  # else another end than the first is shown
        assert seconds_until_stalled("bad-argument", ended["finishedAt"]) <= NAMED_SECONDS


def test_a_child_of_somebody_else_with_our_name_is_left_as_it_is() -> None:
    wait_for("Stalled", stalled("taken", "NameConflict"), SECONDS)
    assert kube.get("service", "taken", NAMESPACE)["spec"]["ports"][0]["port"] == 1
    cluster.kubectl("-n", NAMESPACE, "delete", "service", "taken")
    wait_for("no longer stalled", no_longer_stalled("taken"), SECONDS)


def test_a_field_that_a_template_does_not_have_is_named_as_the_user_wrote_it() -> None:
    kube.apply(yaml.safe_dump(with_typo()), NAMESPACE)
    message = wait_for("Stalled", stalled("typo"), SECONDS)
    assert "spec.decode.template.spec.tolerations[0].keyz" in message
    assert any("spec.decode.template.spec.tolerations[0].keyz" in note for note in events_of("typo"))
    live = kube.get("infsvc", "typo", NAMESPACE)
    assert seconds_until_stalled("typo", live["metadata"]["creationTimestamp"]) <= NAMED_SECONDS
    kube.patch("infsvc", "typo", {"spec": {"decode": {"template": None}}}, NAMESPACE)
    wait_for("no longer stalled", no_longer_stalled("typo"), SECONDS)
