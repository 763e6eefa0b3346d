"""What e2e tests share: Phasewise on the cluster, the service `chat`, and evidence of the cluster where a test fails.

A service takes a minute and a half to start on two cores. So `chat` is shared, and Ready at the beginning of each test
that uses it: files and tests pass in any order, but for test_namespace, which ends `chat`. The order also saves time:
services start while the first files run, which need none, and chat is idle during test_scaling, which is what
test_reconcile has to see of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import cast

import pluggy
import pytest
from _pytest.capture import CaptureManager

from e2e import cluster, kube, service
from e2e.cluster.progress import step
from e2e.cluster.settings import NODE_NAME
from e2e.deploy import NAMESPACE as OPERATOR_NAMESPACE
from e2e.deploy import OPERATOR, bring_up, stop_demo
from e2e.reference import Reference
from e2e.rollouts.ground import SLOTS, set_slots
from e2e.service import NAMESPACE, NAMESPACES, Service, chat_manifest, scaled_manifest
from phasewise_runtime import contract

FILES = (
    "test_crds",
    "test_stored_objects",
    "test_conditions",
    "test_scaling",
    "test_reconcile",
    "test_rollouts",
    "test_reapply",
    "test_fuzz",
    "test_network",
    "test_admission",
    "test_serving",
    "test_parameters",
    "test_faults",
    "test_namespace",
)
STARTED_EARLY = {"started_chat": chat_manifest, "scaled": scaled_manifest}
"""Services by the fixture that waits for them: those that a test needs start with the session."""
EVIDENCE_LINES = 30
SUCCEEDED = '"outcome": "ok"'
"""In a router's log line of a request."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(FILES)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    for item in items:
        item.add_marker(pytest.mark.e2e)


def uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    """Progress is printed at once, past pytest's capture."""
    manager = cast("CaptureManager", config.pluginmanager.getplugin("capturemanager"))
    return manager.global_and_fixture_disabled()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """A failure is reported with the state of the cluster, which is gone when somebody reads the report.

    Its message stands once more at the end: of a long output the end is read first.
    """
    report = (yield).get_result()
    if report.failed:
        report.sections.append(("cluster", evidence()))
        crash = getattr(report.longrepr, "reprcrash", None)
        report.sections.append(("failed", f"{item.nodeid}: {getattr(crash, 'message', report.longreprtext)[:2000]}"))


def evidence() -> str:
    logs = ("logs", "--prefix", "--since=5m", "--tail=-1", "-l")
    commands = [("-n", OPERATOR_NAMESPACE, *logs, f"app.kubernetes.io/name={OPERATOR}")]
    for namespace in NAMESPACES:
        commands += [
            ("-n", namespace, "get", "infsvc,pods", "-o", "wide"),
            ("-n", namespace, *logs, f"{contract.LABEL_ROLE}={contract.ROUTER}"),
            ("-n", namespace, *logs, f"{contract.LABEL_ROLE}={contract.DECODE}"),
        ]
    found: list[str] = []
    for command in commands:
        try:
            found += last_of_each([line for line in cluster.kubectl(*command).splitlines() if SUCCEEDED not in line])
        except cluster.ClusterError as error:
            found.append(str(error))
    return "\n".join(found)


def last_of_each(lines: Sequence[str]) -> list[str]:
    """The last lines of each pod's container, by kubectl's prefix `[pod/NAME/CONTAINER]`, and of what has none."""
    kept: dict[str, list[str]] = {}
    for line in lines:
        kept.setdefault(line.partition("]")[0] if line.startswith("[pod/") else "", []).append(line)
    return [line for each in kept.values() for line in each[-EVIDENCE_LINES:]]


@pytest.fixture(scope="session", autouse=True)
def phasewise(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> None:
    """Phasewise on the cluster, nothing left of an earlier run, and `chat` on its way up where a test needs it."""
    with uncaptured(pytestconfig):
        print()
        if not cluster.is_local():
            pytest.exit("e2e tests take parts of the cluster away: they run on the local one only; unset CLUSTER", 2)
        bring_up()
        cluster.selected().remove_node()
        stop_demo()
        found = {live["metadata"]["name"] for live in kube.find("namespaces")}
        if left := sorted(found & set(NAMESPACES)):
            with step("removing what an earlier run left"):
                cluster.kubectl("delete", "namespace", *left, "--timeout=180s")
        set_slots(NODE_NAME, SLOTS)
        needed = {fixture for item in request.session.items for fixture in getattr(item, "fixturenames", ())}
        for fixture in STARTED_EARLY.keys() & needed:
            service.apply(STARTED_EARLY[fixture]())


@pytest.fixture(scope="session")
def show_step(pytestconfig: pytest.Config) -> Callable[[str], AbstractContextManager[None]]:
    """`step`, past pytest's capture."""

    @contextmanager
    def shown(text: str) -> Generator[None]:
        with uncaptured(pytestconfig), step(text):
            yield

    return shown


@pytest.fixture
def namespace(phasewise: None) -> str:
    """For objects of a single test."""
    service.make_namespace(NAMESPACE)
    return NAMESPACE


@pytest.fixture(scope="session")
def started_chat(phasewise: None, show_step: Callable[[str], AbstractContextManager[None]]) -> Iterator[Service]:
    with show_step("service chat: two routers, two prefill pods, one decode pod"):
        chat = Service.when_ready(chat_manifest())
    yield chat
    with show_step("deleting service chat: nothing of it is left"):
        chat.delete()


@pytest.fixture
def chat(started_chat: Service) -> Service:
    """Ready at the beginning of each test, whatever the test before did to it."""
    started_chat.wait_ready()
    started_chat.expose()
    return started_chat


@pytest.fixture(scope="session")
def decode_engine(started_chat: Service) -> Reference:
    return Reference(started_chat.expose_engine())


@pytest.fixture
def reference(decode_engine: Reference, chat: Service) -> Reference:
    """Chat's decode engine, asked directly; the services of these tests have the same model and arguments."""
    return decode_engine
