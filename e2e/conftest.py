"""What e2e tests share: Phasewise on the cluster, and one real service that most of them look at.

A service costs a minute and a half to start on two cores, so tests share it, and go from what only looks at it to what
breaks it: the order of the files is stated here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import pluggy
import pytest
import yaml
from _pytest.capture import CaptureManager

from e2e import client, cluster, kube
from e2e.demo import SERVICE as DEMO
from e2e.images import ROOT
from e2e.stack import NAMESPACE as OPERATOR_NAMESPACE
from e2e.stack import OPERATOR, bring_up, step
from phasewise_runtime import contract

NAMESPACE = "e2e"
EVIDENCE_LINES = 30
WENT_WELL = '"outcome": "ok"'
"""In a router's line of a request."""
FILES = (
    "test_crds",
    "test_stored_objects",
    "test_chart",
    "test_judged",
    "test_scaling",
    "test_serving",
    "test_reconcile",
    "test_engine_arguments",
    "test_faults",
    "test_teardown",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(FILES)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    for item in items:
        item.add_marker(pytest.mark.e2e)


def shown(config: pytest.Config) -> AbstractContextManager[None]:
    """Progress is for whoever waits: it goes past pytest's capture."""
    manager = cast("CaptureManager", config.pluginmanager.getplugin("capturemanager"))
    return manager.global_and_fixture_disabled()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """A failure is told with what the cluster looked like: it is gone when somebody reads of it.

    Then once more what failed: of a long output the end is read first, or alone.
    """
    report = (yield).get_result()
    if report.failed:
        report.sections.append(("cluster", evidence()))
        crash = getattr(report.longrepr, "reprcrash", None)
        report.sections.append(("failed", f"{item.nodeid}: {getattr(crash, 'message', report.longreprtext)[:2000]}"))


def evidence() -> str:
    logs = ("logs", "--prefix", "--since=5m", "--tail=-1", "-l")
    commands = (
        ("-n", NAMESPACE, "get", "infsvc,pods", "-o", "wide"),
        ("-n", NAMESPACE, *logs, f"{contract.LABEL_ROLE}={contract.ROUTER}"),
        ("-n", NAMESPACE, *logs, f"{contract.LABEL_ROLE}={contract.DECODE}"),
        ("-n", OPERATOR_NAMESPACE, *logs, f"app.kubernetes.io/name={OPERATOR}"),
    )
    told: list[str] = []
    for command in commands:
        try:
            told += last_of_each([line for line in cluster.kubectl(*command).splitlines() if WENT_WELL not in line])
        except cluster.ClusterError as error:
            told.append(str(error))
    return "\n".join(told)


def last_of_each(lines: Sequence[str]) -> list[str]:
    """The last lines of each pod's container, by kubectl's prefix `[pod/NAME/CONTAINER]`, and of what has none."""
    kept: dict[str, list[str]] = {}
    for line in lines:
        kept.setdefault(line.partition("]")[0] if line.startswith("[pod/") else "", []).append(line)
    return [line for each in kept.values() for line in each[-EVIDENCE_LINES:]]


@dataclass(frozen=True)
class Service:
    name: str
    namespace: str
    model: str
    url: str

    def expose(self) -> str:
        return cluster.selected().expose(f"{self.namespace}/{self.name}:80")

    def expose_engine(self) -> str:
        """URL of the decode engines by themselves, past the router: what answers must be equal to."""
        manifest = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"{self.name}-alone", "namespace": self.namespace},
            "spec": {
                "selector": {contract.LABEL_SERVICE: self.name, contract.LABEL_ROLE: contract.DECODE},
                "ports": [{"port": contract.ENGINE_PORT}],
            },
        }
        kube.apply(yaml.safe_dump(manifest), self.namespace)
        url = cluster.selected().expose(f"{self.namespace}/{self.name}-alone:{contract.ENGINE_PORT}")
        kube.wait_for("an address that leads to the engine", lambda: client.answers(f"{url}/health"), 60)
        return url

    def wait_ready(self, seconds: float = 400) -> kube.Object:
        return kube.wait_ready(self.name, self.namespace, seconds)


@pytest.fixture(scope="session", autouse=True)
def phasewise(pytestconfig: pytest.Config) -> None:
    """The stack, up. A running demo is stopped first: two cores do not hold both."""
    with shown(pytestconfig):
        print()
        if not cluster.is_local():
            pytest.exit("e2e tests take parts of the cluster away: they run on the local one only; unset CLUSTER", 2)
        bring_up()
        if any(live["metadata"]["name"] == DEMO for live in kube.find("infsvc", namespace="default")):
            with step(f"stopping service {DEMO}, which `make demo` left running: two cores do not hold both"):
                cluster.kubectl("delete", "infsvc", DEMO, "--cascade=foreground", "--timeout=120s")
        if any(live["metadata"]["name"] == NAMESPACE for live in kube.find("namespaces")):
            with step("removing what an earlier run left"):
                cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s")


@pytest.fixture(scope="session")
def namespace(phasewise: None) -> str:
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(manifest))
    return NAMESPACE


def example(name: str, namespace: str) -> kube.Object:
    """The quickstart, under another name: tests and users run the same."""
    manifest = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    manifest["metadata"] = {"name": name, "namespace": namespace}
    return manifest


def quickstart(name: str, namespace: str) -> kube.Object:
    """The example for tests that are not about scaling: pools of one size, with a whole core a pod to start sooner."""
    manifest = example(name, namespace)
    for role in contract.ENGINE_ROLES:
        manifest["spec"][role]["replicas"] = {"min": 1}
        manifest["spec"][role]["resources"]["limits"]["cpu"] = 1
    return manifest


@pytest.fixture(scope="session")
def service(namespace: str, pytestconfig: pytest.Config) -> Service:
    """Two routers, two prefill pods, one decode pod: what the faults need."""
    manifest = quickstart("chat", namespace)
    manifest["spec"]["router"]["replicas"] = 2
    manifest["spec"]["prefill"]["replicas"] = {"min": 2}
    manifest["spec"]["maxGenerationSeconds"] = 60
    kube.apply(yaml.safe_dump(manifest), namespace)
    with shown(pytestconfig), step("service chat: two routers, two prefill pods, one decode pod"):
        kube.wait_ready("chat", namespace, seconds=900)
    url = cluster.selected().expose(f"{namespace}/chat:80")
    return Service("chat", namespace, manifest["spec"]["model"]["name"], url)


@pytest.fixture(scope="session")
def engine_alone(service: Service) -> str:
    return service.expose_engine()
