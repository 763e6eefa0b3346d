"""The pools follow measured TTFT and ITL, or a PoolScaler, and no request is lost on the way: on one real service.

The service is the quickstart as it is, its engines limited in CPU so that no pool takes it from another, and the only
one under load. Each load finds out by itself what is too much for one pod. Every test brings the pools to where it
begins; in the order of this file that takes least time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from e2e import cluster, kube, operators, targets
from e2e.cluster.progress import wait_for
from e2e.load import Load, Outcome, latency, load, make_request, wait_for_answers
from e2e.load_shapes import GenerationHeavy, PromptHeavy, ShapedLoad, applied, breach
from e2e.reference import Reference
from e2e.service import SCALED_MAX_GENERATION_SECONDS as MAX_GENERATION_SECONDS
from e2e.service import Service, scaled_manifest
from e2e.watch import Watch
from phasewise_runtime import contract

START_SECONDS = 420
GROW_SECONDS = 420
RETURN_SECONDS = 300
PATCH_SECONDS = 5
STABILIZATION = "20s"
SHORT_STABILIZATION = "10s"
"""For pools that are to return to one pod: no load comes that could make them grow again."""
HOLD_SECONDS = 45
"""More than the short stabilization and an SLO window of 30 s: a pool that was not held would have shrunk."""
LONG_STREAMS = 24
"""On two pods: enough that 1,900 tokens take each of them longer than MAX_GENERATION_SECONDS."""
OTHER = {contract.PREFILL: contract.DECODE, contract.DECODE: contract.PREFILL}


@pytest.fixture(scope="module")
def scaled(phasewise: None, show_step: Callable[[str], AbstractContextManager[None]]) -> Iterator[Service]:
    with show_step("service scaled: pools of one to two pods, 400m CPU each"):
        found = Service.when_ready(scaled_manifest())
    with show_step("targets that this machine can meet"):
        single, fitted = targets.fit(found.name, found.namespace, found.url, found.model)
        print(f"    single requests: {single}; targets: {fitted}")
    yield found
    with show_step("deleting service scaled: nothing of it is left"):
        found.delete()


def new_watch(scaled: Service) -> Watch:
    found = Watch(scaled.name, scaled.namespace)
    found.refresh()
    return found


@pytest.fixture
def watch_from_one(scaled: Service, reference: Reference) -> Watch:
    """In mode Auto with one pod in each pool: another test, or slow first requests, may have made two."""
    scaled.set_scaling(mode="Auto", scaleDownStabilization=SHORT_STABILIZATION)
    before = new_watch(scaled)
    assert before.wait(lambda: before.all_at(1), RETURN_SECONDS), before.summary()
    scaled.set_scaling(scaleDownStabilization=STABILIZATION)
    return new_watch(scaled)


@pytest.fixture
def watch_from_two(scaled: Service, reference: Reference) -> Watch:
    """In mode Auto with two prefill pods, which a long stabilization keeps: a load has left them, or they start now."""
    watch = new_watch(scaled)
    if not watch.at(contract.PREFILL, 2):
        set_external(scaled)
        scaled.scale(contract.PREFILL, 2)
        wait_for("two prefill pods", lambda: scaled.ready_pods(contract.PREFILL) == 2, START_SECONDS)
    scaled.set_scaling(mode="Auto", scaleDownStabilization="600s")
    assert watch.wait(lambda: watch.at(contract.PREFILL, 2), PATCH_SECONDS), watch.summary()
    return watch


@pytest.fixture
def external(scaled: Service) -> Service:
    """In mode External with one replica in each pool."""
    set_external(scaled)
    for role in contract.ENGINE_ROLES:
        scaled.scale(role, 1)
        wait_for_replicas(scaled, role, 1)
    wait_for("no bound in the way", lambda: scaled.condition("ScalingLimited")[0] == "False", 20)
    return scaled


def set_external(scaled: Service) -> None:
    scaled.set_scaling(mode="External")
    wait_for("External", lambda: scaled.condition("ScalingActive")[1] == "External", 20)


def wait_for_replicas(scaled: Service, role: str, replicas: int) -> None:
    wait_for(f"{role} of {replicas}", lambda: scaled.replicas(role) == replicas, PATCH_SECONDS, 0.2)


def wait_until_grown(watch: Watch, running: ShapedLoad) -> None:
    role = running.shape.pool
    assert watch.wait(lambda: watch.at(role, 2), GROW_SECONDS), f"{role} does not grow: {watch.summary()}"
    running.pool_has_grown.set()
    in_target = watch.wait(lambda: watch.at(role, 2) and watch.rows[role].in_target is True, GROW_SECONDS)
    assert in_target, f"{role} is not back within its target: {watch.summary()}; {running.size}"


def assert_complete(running: Load | ShapedLoad, reference: Reference) -> None:
    """0 failed requests, 0 lost or doubled tokens."""
    assert [(o.request.path, o.answer.error, o.answer.finish_reason) for o in running.failed] == []
    assert len(running.outcomes) == len(running.sent)
    assert reference.differences(running.outcomes) == []


def assert_patched_in_time(scaled: Service, running: ShapedLoad, watch: Watch, began: float) -> None:
    """At most PATCH_SECONDS after the breach of a target; before it, where the load shows that one is to come."""
    slo = targets.of(scaled.name, scaled.namespace)
    missed = breach(running, slo.ttft, slo.itl)
    name = scaled.deployment(running.shape.pool)["metadata"]["name"]
    patched = operators.writes(began, f"deployments/{name}")[0][0]
    lag = patched - (missed + time.time() - time.monotonic())
    print(f"{running.shape.name}, {running.size}: patched {lag:.1f} s after the breach; {latency(running.outcomes)}")
    print(watch.summary())
    assert lag < PATCH_SECONDS


def assert_returns_to_one(scaled: Service, watch: Watch, role: str, reference: Reference) -> None:
    """Under short requests of all kinds: none of them is lost with the pod that goes."""
    scaled.set_scaling(scaleDownStabilization=SHORT_STABILIZATION)
    with load(scaled.url, scaled.model, workers=2, longest=300) as running:
        assert watch.wait(lambda: watch.at(role, 1), RETURN_SECONDS), f"{role} does not return: {watch.summary()}"
        wait_for_answers(running, 2)
    assert_complete(running, reference)


def test_prompt_heavy_load_grows_prefill_and_not_decode(
    scaled: Service, reference: Reference, watch_from_one: Watch
) -> None:
    watch = watch_from_one
    target = targets.of(scaled.name, scaled.namespace).ttft
    began = time.time()
    with applied(PromptHeavy(scaled.url, scaled.model, target=target)) as running:
        wait_until_grown(watch, running)
        scaled.set_scaling(scaleDownStabilization="600s")  # saves the next test the start of a second pod
    assert watch.max_replicas[contract.DECODE] == 1
    assert_patched_in_time(scaled, running, watch, began)
    assert_complete(running, reference)


def test_a_pool_is_not_shrunk_while_half_of_its_pods_cannot_be_scraped(
    scaled: Service, reference: Reference, watch_from_two: Watch
) -> None:
    """Only the missing scrape keeps prefill at two: it shrinks as soon as the pod can be scraped again."""
    watch = watch_from_two

    def one_is_unreadable() -> bool:
        status, reason, message = scaled.condition("ScalingActive")
        return (status, reason) == ("False", "Unreadable") and "1 of 2 prefill" in message

    pod = scaled.pods(contract.PREFILL)[0]["metadata"]["name"]
    with operators.cut_off(pod, scaled.namespace):
        try:
            wait_for("ScalingActive that says which pool cannot be scraped", one_is_unreadable, 60)
        finally:
            scaled.set_scaling(scaleDownStabilization=SHORT_STABILIZATION)
        changed = watch.wait(lambda: watch.rows[contract.PREFILL].desired != 2, HOLD_SECONDS)
        assert not changed, f"prefill is given another size: {watch.summary()}"
        assert kube.is_ready(kube.get("pod", pod, scaled.namespace)), "the pod itself is ready"
    assert_returns_to_one(scaled, watch, contract.PREFILL, reference)
    wait_for("ScalingActive", lambda: scaled.condition("ScalingActive")[0] == "True", 20)


def test_generation_heavy_load_grows_decode_and_not_prefill_though_the_operator_is_killed(
    scaled: Service, reference: Reference, watch_from_one: Watch
) -> None:
    """Killed between the new replicas and the new pod; the next leader finds a size that it did not decide."""
    watch = watch_from_one
    slo = targets.of(scaled.name, scaled.namespace)
    began = time.time()
    with (
        applied(GenerationHeavy(scaled.url, scaled.model, target=slo.itl, ttft=slo.ttft)) as running,
        scaled.replicas_seen(contract.DECODE) as seen,
    ):
        wait_for("decode is to grow", lambda: scaled.replicas(contract.DECODE) == 2, GROW_SECONDS)
        ready = scaled.deployment(contract.DECODE)["status"].get("readyReplicas", 0)
        operators.kill(operators.leader())
        assert ready < 2, "the operator was to be killed before the new pod is ready"
        wait_until_grown(watch, running)
    assert seen == [1, 2], seen
    assert watch.max_replicas[contract.PREFILL] == 1
    assert_patched_in_time(scaled, running, watch, began)
    assert_complete(running, reference)
    assert_returns_to_one(scaled, watch, contract.DECODE, reference)


def test_a_stream_longer_than_allowed_on_a_draining_pod_ends_in_an_explicit_error(external: Service) -> None:
    external.scale(contract.DECODE, 2)
    wait_for("two decode pods", lambda: external.ready_pods(contract.DECODE) == 2, START_SECONDS)
    running = Load(external.url, external.model)
    ask = partial(make_request, external.model, chat=True, stream=True, output=1900)
    threads = [threading.Thread(target=running.send, args=(ask(n, 24),), daemon=True) for n in range(LONG_STREAMS)]
    for thread in threads:
        thread.start()
    wait_for("tokens on all streams", lambda: len([o for o in running.sent if o.answer.ttft]) == LONG_STREAMS, 60)
    assert running.outcomes == [], "no stream has ended yet"
    external.scale(contract.DECODE, 1)
    wait_for("a draining decode pod", lambda: len(external.pods(contract.DECODE)) == 1)
    for thread in threads:
        thread.join(MAX_GENERATION_SECONDS + 30)
    assert len(running.outcomes) == LONG_STREAMS
    assert [o for o in running.outcomes if ends_without_word(o)] == []
    assert [o for o in running.outcomes if o.answer.error] != [], "no stream was longer than allowed"
    selector = f"{contract.LABEL_SERVICE}={external.name},{contract.LABEL_ROLE}={contract.DECODE}"
    drained = MAX_GENERATION_SECONDS + 60
    wait_for("the drained pod gone", lambda: len(kube.find("pods", selector, external.namespace)) == 1, drained)


def ends_without_word(outcome: Outcome) -> bool:
    """Neither complete nor ended by an error event."""
    if outcome.answer.error:
        return not outcome.answer.error.startswith("{")
    return outcome.answer.usage.get("completion_tokens") != outcome.request.body["max_tokens"]


@pytest.mark.parametrize("role", contract.ENGINE_ROLES)
def test_an_external_autoscaler_is_followed_within_bounds(role: str, external: Service) -> None:
    """No pod has to become ready for it: each size is taken back at once."""
    began = time.time()
    external.scale(role, 2)
    wait_for_replicas(external, role, 2)
    path = f"deployments/{external.deployment(role)['metadata']['name']}"
    print(f"{role}: patched {operators.writes(began, path)[0][0] - began:.1f} s after kubectl scale")
    external.scale(role, 9)
    wait_for("the upper bound in a condition", lambda: external.condition("ScalingLimited")[0] == "True", 20)
    assert external.replicas(role) == 2
    assert external.replicas(OTHER[role]) == 1
    external.scale(role, 0)
    wait_for_replicas(external, role, 1)
    external.scale(role, 1)
    wait_for("no bound in the way", lambda: external.condition("ScalingLimited")[0] == "False", 20)


def decode_scaler(external: Service) -> kube.Object | None:
    """The PoolScaler of decode, by the label by which the operator finds it; None where it has lost it."""
    found = kube.find("poolscaler", f"{contract.LABEL_SERVICE}={external.name}", external.namespace)
    return next((s for s in found if s["metadata"]["name"] == f"{external.name}-{contract.DECODE}"), None)


@pytest.fixture
def scaler(external: Service) -> kube.Object:
    """The PoolScaler of decode with replicas: 0. The pool has its minimum of one, so that no pod starts or goes."""
    external.scale(contract.DECODE, 0)
    wait_for("the lower bound in a condition", lambda: external.condition("ScalingLimited")[0] == "True", 20)
    found = decode_scaler(external)
    assert found is not None
    assert found["spec"]["replicas"] == 0
    return found


@pytest.mark.parametrize("label", [contract.LABEL_SERVICE, contract.LABEL_ROLE])
@pytest.mark.parametrize("edit", ["-", "=edited"])
def test_a_pool_scalers_labels_are_repaired_and_its_replicas_kept(
    label: str, edit: str, external: Service, scaler: kube.Object
) -> None:
    before = scaler["metadata"]
    cluster.kubectl("-n", external.namespace, "label", "poolscaler", before["name"], f"{label}{edit}", "--overwrite")

    def repaired() -> kube.Object | None:
        found = decode_scaler(external)
        return found if found and found["metadata"]["labels"] == before["labels"] else None

    after = wait_for("the labels as they were", repaired, PATCH_SECONDS, 0.1)
    assert after["metadata"]["uid"] == before["uid"]
    assert after["spec"] == scaler["spec"]


def test_a_deleted_pool_scaler_comes_back_with_the_size_that_the_pool_has(
    external: Service, scaler: kube.Object
) -> None:
    before = scaler["metadata"]
    cluster.kubectl("-n", external.namespace, "delete", "poolscaler", before["name"], "--wait=false")

    def back() -> kube.Object | None:
        found = decode_scaler(external)
        return found if found and found["metadata"]["uid"] != before["uid"] else None

    after = wait_for("a new PoolScaler", back, PATCH_SECONDS, 0.1)
    assert after["spec"] == {**scaler["spec"], "replicas": 1}


def test_mode_manual_returns_a_pool_to_its_minimum(external: Service) -> None:
    external.scale(contract.PREFILL, 2)
    wait_for_replicas(external, contract.PREFILL, 2)
    external.set_scaling(mode="Manual")
    wait_for_replicas(external, contract.PREFILL, 1)
    wait_for("mode Manual in a condition", lambda: external.condition("ScalingActive")[:2] == ("False", "Manual"), 20)
