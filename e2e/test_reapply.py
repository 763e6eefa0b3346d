"""What is applied again changes nothing: each example, and a service that serves, 100 times beside the operator.

No pod of the examples starts: a quota allows none. Most of their engines ask for GPUs that are not there, and the CPU
is the other tests'.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping

import pytest
import yaml

from e2e import kube, operators, service
from e2e.cluster import kubectl
from e2e.cluster.progress import wait_for
from e2e.images import ROOT
from e2e.service import CHILDREN, REAPPLY_NAMESPACE, Service, chat_manifest

TIMES = 100
EXAMPLES = [path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))]
WAYS: Mapping[str, tuple[str, ...]] = {"client-side": (), "server-side": ("--server-side",)}
"""`kubectl apply` merges by itself, or lets the API server do it."""
QUIET_SECONDS = 5
"""Longer than the operator takes to act on anything that it sees."""


def several(manifests: list[str], times: int = 1) -> str:
    return "\n---\n".join(manifests * times)


def stored(namespace: str) -> dict[str, kube.Object]:
    """The services and all that is made of them, by kind and name, but for what goes with their status."""
    listed = kubectl("-n", namespace, "get", f"infsvc,{CHILDREN}", "--show-managed-fields", "-o", "json")
    found: dict[str, kube.Object] = {}
    for live in json.loads(listed)["items"]:
        live.pop("status", None)
        metadata = live["metadata"]
        metadata.pop("resourceVersion")
        metadata["managedFields"] = [f for f in metadata.get("managedFields", ()) if f.get("subresource") != "status"]
        found[f"{live['kind']}/{metadata['name']}"] = live
    return found


def apply_again(manifests: list[str], namespace: str, *way: str) -> None:
    """100 times each, and see that the objects stay as they are, as do those that the operator makes of them."""
    before, began = stored(namespace), time.time()
    printed = kubectl("-n", namespace, "apply", *way, "-f", "-", text=several(manifests, TIMES)).splitlines()
    ended = time.time()
    objects = sum(1 for manifest in manifests for body in yaml.safe_load_all(manifest) if body)
    assert len(printed) == TIMES * objects
    assert way or [line for line in printed if not line.endswith(" unchanged")] == []
    wait_for("the operator at work after that", lambda: operators.writes(ended, "/leases/"), 30)
    assert writes(namespace, began) == []
    assert stored(namespace) == before
    kubectl("-n", namespace, "diff", *way, "-f", "-", text=several(manifests))
    print(f"{namespace}: {len(printed)} objects applied again in {ended - began:.1f} s")


def writes(namespace: str, since: float) -> list[str]:
    """The operator's about a namespace, but for status and Events, which follow pods too."""
    found = [what for _, what in operators.writes(since, f"/namespaces/{namespace}/")]
    return [what for what in found if "/status" not in what and "/events" not in what]


NO_PODS = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: no-pods}
spec: {hard: {pods: "0"}}
"""


@pytest.fixture(scope="module")
def examples(phasewise: None) -> Iterator[str]:
    """The namespace of all examples, where no pod may start. What one way has applied, the next one applies over it."""
    service.make_namespace(REAPPLY_NAMESPACE)
    kube.apply(NO_PODS, REAPPLY_NAMESPACE)
    wait_for(
        "the quota in force", lambda: kube.get("quota", "no-pods", REAPPLY_NAMESPACE).get("status", {}).get("hard")
    )
    yield REAPPLY_NAMESPACE
    kubectl("delete", "namespace", REAPPLY_NAMESPACE, "--timeout=120s")


def all_are_quiet() -> bool:
    live = kube.find("infsvc", namespace=REAPPLY_NAMESPACE)
    seen = [one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"] for one in live]
    return len(seen) == len(EXAMPLES) and all(seen) and not writes(REAPPLY_NAMESPACE, time.time() - QUIET_SECONDS)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_examples_that_are_applied_again_change_nothing(way: tuple[str, ...], examples: str) -> None:
    kubectl("-n", examples, "apply", *way, "-f", "-", text=several(EXAMPLES))
    wait_for("every example's children", all_are_quiet, 120)
    apply_again(EXAMPLES, examples, *way)


def test_a_service_that_serves_and_is_applied_again_does_not_change(chat: Service) -> None:
    wait_for("a service that has settled", lambda: not writes(chat.namespace, time.time() - QUIET_SECONDS), 60)
    apply_again([yaml.safe_dump(chat_manifest())], chat.namespace)
