"""What only the operator can check: Stalled with a reason, and no longer so when its cause is gone.

The services are made at once, since each waits for something else and none needs much of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from e2e import cluster, kube, service
from e2e.cluster.progress import wait_for
from e2e.service import NAMESPACE

SECONDS = 120


def aggregated(name: str) -> kube.Object:
    """One pool: a single engine pod is enough for these conditions."""
    manifest = service.quickstart(name, NAMESPACE)
    del manifest["spec"]["prefill"]
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


def with_taken_name() -> kube.Object:
    manifest = aggregated("taken")
    manifest["spec"]["decode"]["replicas"] = {"min": 0, "max": 1}
    return manifest


@pytest.fixture(scope="module", autouse=True)
def services(phasewise: None) -> Iterator[None]:
    manifests = [without_secret(), without_model(), without_image(), with_taken_name()]
    service.make_namespace(NAMESPACE)
    cluster.kubectl("-n", NAMESPACE, "create", "service", "clusterip", "taken", "--tcp=1:1")
    kube.apply(yaml.safe_dump_all(manifests), NAMESPACE)
    yield
    names = [manifest["metadata"]["name"] for manifest in manifests]
    cluster.kubectl("-n", NAMESPACE, "delete", "infsvc", *names, "--cascade=foreground", "--timeout=120s")
    for kind, name in (("secret", "my-keys"), ("service", "taken")):
        cluster.kubectl("-n", NAMESPACE, "delete", kind, name, "--ignore-not-found")


def stalled(name: str, expected: str) -> Callable[[], str | None]:
    """The message of Stalled where it is True with the expected reason."""

    def probe() -> str | None:
        status, reason, message = kube.condition(kube.get("infsvc", name, NAMESPACE), "Stalled")
        return message if status == "True" and reason == expected else None

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


def test_a_child_of_somebody_else_with_our_name_is_left_as_it_is() -> None:
    wait_for("Stalled", stalled("taken", "NameConflict"), SECONDS)
    assert kube.get("service", "taken", NAMESPACE)["spec"]["ports"][0]["port"] == 1
    cluster.kubectl("-n", NAMESPACE, "delete", "service", "taken")
    wait_for("no longer stalled", no_longer_stalled("taken"), SECONDS)
