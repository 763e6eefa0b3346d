"""The pools breathe by measured TTFT and ITL, and nothing is lost on the way: one real service, in the order of a day.

The service is the quickstart as it is, its engines capped in CPU so that no pool steals from another, and alone on the
cluster. Each load finds out by itself what is too much for one pod.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from functools import partial

import pytest
import yaml

from e2e import cluster, kube, operators, targets
from e2e.alone import differences
from e2e.conftest import Service, example, shown
from e2e.load import Load, Outcome, enough, load, make_request
from e2e.pools import ask_for, condition, deployment, is_half_read, ready_pods, set_mode, set_stabilization, size, sizes
from e2e.results import breach, latency, right_answers, wrong_answers
from e2e.shapes import GENERATION_HEAVY, PROMPT_HEAVY, GenerationHeavy, PromptHeavy, Shaped, applied
from e2e.stack import step
from e2e.watch import Watch
from phasewise_runtime import contract

START_SECONDS = 420
GROW_SECONDS = 420
RETURN_SECONDS = 300
PATCH_SECONDS = 5
STABILIZATION = "20s"
HOLD_SECONDS = 45
"""More than twice the stabilization: a pool that were not held would have shrunk."""
LONGEST = 60
LONG_STREAMS = 24
"""On two pods: enough that 1,900 tokens take each of them longer than LONGEST."""
OTHER = {contract.PREFILL: contract.DECODE, contract.DECODE: contract.PREFILL}
Right = dict[str, dict[str, Outcome]]


@pytest.fixture(scope="module")
def breathing(namespace: str, pytestconfig: pytest.Config) -> Generator[Service]:
    manifest = example("breathing", namespace)
    manifest["spec"]["maxGenerationSeconds"] = LONGEST
    kube.apply(yaml.safe_dump(manifest), namespace)
    with shown(pytestconfig), step("service breathing: pools of one to two pods, 400m CPU each"):
        kube.wait_ready("breathing", namespace, seconds=900)
    url = cluster.selected().expose(f"{namespace}/breathing:80")
    found = Service("breathing", namespace, manifest["spec"]["model"]["name"], url)
    with shown(pytestconfig), step("targets that this machine can meet"):
        alone, fitted = targets.fit(found.name, namespace, url, found.model)
        print(f"    alone: {alone}; targets: {fitted}")
    yield found
    cluster.kubectl("-n", namespace, "delete", "infsvc", "breathing", "--cascade=foreground", "--timeout=180s")


@pytest.fixture(scope="module")
def alone(breathing: Service) -> str:
    return breathing.expose_engine()


@pytest.fixture(scope="module")
def right(breathing: Service, alone: str) -> Right:
    return {s.name: right_answers(alone, breathing.model, s) for s in (PROMPT_HEAVY, GENERATION_HEAVY)}


@pytest.fixture
def watch(breathing: Service) -> Watch:
    found = Watch(breathing.name, breathing.namespace)
    found.look()
    return found


@pytest.fixture
def watch_from_one(breathing: Service, right: Right) -> Watch:
    """Of a service whose pools have one pod each: an engine's first, slow requests may have made them two."""
    set_stabilization(breathing, STABILIZATION)
    before = Watch(breathing.name, breathing.namespace)
    assert before.until(lambda: before.all_at(1), RETURN_SECONDS), before.told()
    found = Watch(breathing.name, breathing.namespace)
    found.look()
    return found


def wait_grown(watch: Watch, running: Shaped) -> None:
    role = running.shape.pool
    assert watch.until(lambda: watch.at(role, 2), GROW_SECONDS), f"{role} does not grow: {watch.told()}"
    running.enough.set()
    done = watch.until(lambda: watch.at(role, 2) and watch.rows[role].in_target is True, GROW_SECONDS)
    assert done, f"{role} is not back within its target: {watch.told()}; {running.size}"


def assert_whole(running: Shaped, right: Right) -> None:
    """0 failed requests, 0 lost or doubled tokens."""
    assert [(o.request.path, o.answer.error, o.answer.finish_reason) for o in running.failed] == []
    assert len(running.outcomes) == len(running.sent)
    assert wrong_answers(running.outcomes, right[running.shape.name], running.shape) == []


def assert_quick(service: Service, running: Shaped, watch: Watch, began: float) -> None:
    """From the breach of a target to new replicas; before it, where the load alone said what was to come."""
    slo = targets.of(service.name, service.namespace)
    missed = breach(running, slo.ttft, slo.itl)
    name = deployment(service, running.shape.pool)["metadata"]["name"]
    patched = operators.writes(began, f"deployments/{name}")[0][0]
    lag = patched - (missed + time.time() - time.monotonic())
    print(f"{running.shape.name}, {running.size}: patched {lag:.1f} s after the breach; {latency(running.outcomes)}")
    print(watch.told())
    assert lag < PATCH_SECONDS


def return_to_one(service: Service, watch: Watch, role: str, alone: str) -> None:
    """While requests of all kinds run, short ones: a pod that goes away takes none of them with it."""
    with load(service.url, service.model, workers=2, longest=300) as running:
        assert watch.until(lambda: watch.at(role, 1), RETURN_SECONDS), f"{role} does not return: {watch.told()}"
        enough(running, 2)
    assert_kept(running, alone)


def assert_kept(running: Load, alone: str) -> None:
    assert [(o.answer.error, o.answer.finish_reason) for o in running.failed] == []
    # One by one: prompts that wait in the engine, sent to it past the router, would look like a load.
    assert differences(running.outcomes, alone, at_once=1) == []


def test_prompt_heavy_load_grows_prefill_and_leaves_decode(
    breathing: Service, right: Right, watch_from_one: Watch
) -> None:
    watch = watch_from_one
    target = targets.of(breathing.name, breathing.namespace).ttft
    began = time.time()
    with applied(PromptHeavy(breathing.url, breathing.model, target=target)) as running:
        wait_grown(watch, running)
        set_stabilization(breathing, "600s")  # the next test begins with two
    assert watch.most[contract.DECODE] == 1
    assert_quick(breathing, running, watch, began)
    assert_whole(running, right)


def test_a_pool_half_of_whose_pods_cannot_be_read_is_held(breathing: Service, watch: Watch, alone: str) -> None:
    """Nothing but the missing page keeps prefill at two: it shrinks as soon as the page is there again."""
    assert watch.at(contract.PREFILL, 2), "the load of the test before made it two"
    pod = kube.pods(breathing.name, contract.PREFILL, breathing.namespace)[0]["metadata"]["name"]
    with operators.cut_off(pod, breathing.namespace):
        try:
            kube.wait_for("ScalingActive says that a pod cannot be read", lambda: is_half_read(breathing), 60)
        finally:
            set_stabilization(breathing, STABILIZATION)
        changed = watch.until(lambda: watch.rows[contract.PREFILL].wanted != 2, HOLD_SECONDS)
        assert not changed, f"prefill was to have another size: {watch.told()}"
        assert kube.is_ready(kube.get("pod", pod, breathing.namespace)), "the pod itself is well"
    return_to_one(breathing, watch, contract.PREFILL, alone)
    kube.wait_for("ScalingActive", lambda: condition(breathing, "ScalingActive")[0] == "True", 20)


def test_generation_heavy_load_grows_decode_and_leaves_prefill_though_the_operator_is_killed(
    breathing: Service, right: Right, watch_from_one: Watch, alone: str
) -> None:
    """Killed between the new replicas and the new pod; who leads then finds a size that it did not decide."""
    watch = watch_from_one
    slo = targets.of(breathing.name, breathing.namespace)
    began = time.time()
    with (
        applied(GenerationHeavy(breathing.url, breathing.model, target=slo.itl, ttft=slo.ttft)) as running,
        sizes(breathing, contract.DECODE) as seen,
    ):
        kube.wait_for("decode is to grow", lambda: size(breathing, contract.DECODE) == 2, GROW_SECONDS, 0.5)
        ready = deployment(breathing, contract.DECODE)["status"].get("readyReplicas", 0)
        operators.kill_at_once(operators.leader())
        assert ready < 2, "the operator was to be killed before the new pod is ready"
        wait_grown(watch, running)
    assert seen == [1, 2], seen
    assert watch.most[contract.PREFILL] == 1
    assert_quick(breathing, running, watch, began)
    assert_whole(running, right)
    return_to_one(breathing, watch, contract.DECODE, alone)


def test_an_outside_autoscaler_is_followed_within_bounds(breathing: Service) -> None:
    """No pod has to start for it: what is asked for is taken back at once."""
    set_mode(breathing, "External")
    kube.wait_for("External", lambda: condition(breathing, "ScalingActive")[1] == "External", 20)
    for role in contract.ENGINE_ROLES:
        ask_for(breathing, role, 1)
        kube.wait_for(f"{role} of 1", lambda role=role: size(breathing, role) == 1, PATCH_SECONDS, 0.2)
    for role in contract.ENGINE_ROLES:
        asked = time.time()
        ask_for(breathing, role, 2)
        kube.wait_for(f"{role} of 2", lambda role=role: size(breathing, role) == 2, PATCH_SECONDS, 0.2)
        name = deployment(breathing, role)["metadata"]["name"]
        print(
            f"{role}: patched {operators.writes(asked, f'deployments/{name}')[0][0] - asked:.1f} s after kubectl scale"
        )
        ask_for(breathing, role, 9)
        kube.wait_for("the bound told", lambda: condition(breathing, "ScalingLimited")[0] == "True", 20)
        assert size(breathing, role) == 2
        assert size(breathing, OTHER[role]) == 1
        ask_for(breathing, role, 0)
        kube.wait_for(f"{role} of 1", lambda role=role: size(breathing, role) == 1, PATCH_SECONDS, 0.2)
        ask_for(breathing, role, 1)
        kube.wait_for("no bound in the way", lambda: condition(breathing, "ScalingLimited")[0] == "False", 20)


def test_manual_keeps_min(breathing: Service) -> None:
    set_mode(breathing, "External")
    ask_for(breathing, contract.PREFILL, 2)
    kube.wait_for("prefill of 2", lambda: size(breathing, contract.PREFILL) == 2, PATCH_SECONDS)
    set_mode(breathing, "Manual")
    kube.wait_for("prefill of min", lambda: size(breathing, contract.PREFILL) == 1, PATCH_SECONDS)
    kube.wait_for("it says so", lambda: condition(breathing, "ScalingActive")[:2] == ("False", "Manual"), 20)


def test_a_stream_longer_than_allowed_on_a_draining_pod_ends_in_an_explicit_error(breathing: Service) -> None:
    set_mode(breathing, "External")
    kube.wait_for("External", lambda: condition(breathing, "ScalingActive")[1] == "External", 20)
    ask_for(breathing, contract.DECODE, 2)
    kube.wait_for("two decode pods", lambda: ready_pods(breathing, contract.DECODE) == 2, START_SECONDS)
    running = Load(breathing.url, breathing.model)
    ask = partial(make_request, breathing.model, chat=True, stream=True, output=1900)
    threads = [threading.Thread(target=running.send, args=(ask(n, 24),), daemon=True) for n in range(LONG_STREAMS)]
    for thread in threads:
        thread.start()
    kube.wait_for("all streams under way", lambda: under_way(running) == LONG_STREAMS, 60)
    ask_for(breathing, contract.DECODE, 1)
    kube.wait_for(
        "one decode pod goes", lambda: len(kube.pods(breathing.name, contract.DECODE, breathing.namespace)) == 1
    )
    for thread in threads:
        thread.join(LONGEST + 30)
    assert len(running.outcomes) == LONG_STREAMS
    assert [o for o in running.outcomes if is_silent(o)] == []
    assert [o for o in running.outcomes if o.answer.error] != [], "no stream was longer than allowed"
    selector = f"{contract.LABEL_SERVICE}={breathing.name},{contract.LABEL_ROLE}={contract.DECODE}"
    kube.wait_for("it is gone", lambda: len(kube.find("pods", selector, breathing.namespace)) == 1, LONGEST + 60)


def under_way(running: Load) -> int:
    return sum(o.answer.ttft is not None and not o.ended for o in running.sent)


def is_silent(outcome: Outcome) -> bool:
    """Neither whole nor ended by an error event."""
    if outcome.answer.error:
        return not outcome.answer.error.startswith("{")
    return outcome.answer.usage.get("completion_tokens") != outcome.request.body["max_tokens"]
