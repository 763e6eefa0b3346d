"""Objects that only the operator can judge: Stalled with a reason, and healed when the cause goes away."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from e2e import cluster, kube
from e2e.conftest import quickstart

SECONDS = 120


def stalled(name: str, namespace: str, reason: str) -> Callable[[], str | None]:
    def probe() -> str | None:
        status, why, message = kube.condition(kube.get("infsvc", name, namespace), "Stalled")
        return message if status == "True" and why == reason else None

    return probe


def moving(name: str, namespace: str) -> Callable[[], bool]:
    return lambda: kube.condition(kube.get("infsvc", name, namespace), "Stalled")[0] == "False"


def aggregated(name: str, namespace: str) -> kube.Object:
    """One engine pod is enough to be judged."""
    manifest = quickstart(name, namespace)
    del manifest["spec"]["prefill"]
    return manifest


def delete(name: str, namespace: str) -> None:
    cluster.kubectl("-n", namespace, "delete", "infsvc", name, "--cascade=foreground", "--timeout=120s")


def test_a_missing_secret_stalls_and_heals(namespace: str) -> None:
    manifest = aggregated("secretless", namespace)
    manifest["spec"]["router"]["apiKeys"] = {"secretRef": {"name": "my-keys"}}
    manifest["spec"]["decode"]["replicas"] = {"min": 0}
    kube.apply(yaml.safe_dump(manifest), namespace)
    message = kube.wait_for("Stalled", stalled("secretless", namespace, "SecretNotFound"), SECONDS)
    assert "my-keys" in message
    assert kube.condition(kube.get("infsvc", "secretless", namespace), "Ready")[1] == "SecretNotFound"
    cluster.kubectl("-n", namespace, "create", "secret", "generic", "my-keys", "--from-literal=first=abc")
    kube.wait_for("no longer stalled", moving("secretless", namespace), 180)
    delete("secretless", namespace)
    cluster.kubectl("-n", namespace, "delete", "secret", "my-keys")


def test_a_missing_model_stalls_and_heals(namespace: str) -> None:
    manifest = aggregated("modelless", namespace)
    manifest["spec"]["model"]["uri"] = "file:///opt/models/nowhere"
    kube.apply(yaml.safe_dump(manifest), namespace)
    message = kube.wait_for("Stalled", stalled("modelless", namespace, "ModelUnavailable"), SECONDS)
    assert "/opt/models/nowhere" in message
    manifest["spec"]["model"]["uri"] = "file:///opt/models/tiny"
    kube.apply(yaml.safe_dump(manifest), namespace)
    kube.wait_for("no longer stalled", moving("modelless", namespace), SECONDS)
    delete("modelless", namespace)


def test_an_image_that_is_not_there_stalls(namespace: str) -> None:
    manifest = aggregated("imageless", namespace)
    manifest["spec"]["engine"]["image"] = "phasewise/nothing:here"
    kube.apply(yaml.safe_dump(manifest), namespace)
    kube.wait_for("Stalled", stalled("imageless", namespace, "ImageUnavailable"), SECONDS)
    delete("imageless", namespace)


def test_a_name_that_is_taken_is_not_taken_over(namespace: str) -> None:
    cluster.kubectl("-n", namespace, "create", "service", "clusterip", "taken", "--tcp=1:1")
    manifest = aggregated("taken", namespace)
    manifest["spec"]["decode"]["replicas"] = {"min": 0}
    kube.apply(yaml.safe_dump(manifest), namespace)
    kube.wait_for("Stalled", stalled("taken", namespace, "NameConflict"), SECONDS)
    assert kube.get("service", "taken", namespace)["spec"]["ports"][0]["port"] == 1
    cluster.kubectl("-n", namespace, "delete", "service", "taken")
    kube.wait_for("no longer stalled", moving("taken", namespace), SECONDS)
    delete("taken", namespace)
