"""Children that cannot be written or deleted: what the user reads, and when each is tried again."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from tests.operator.conftest import until
from tests.operator.reconcile.fake_api import KEY, Api, Apply, condition, one_pass

from phasewise_operator.kinds import INFERENCE_SERVICE, Manifest
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.observed import Failure
from phasewise_operator.reconcile.failures import LONGEST_SECONDS, Retries, failure
from phasewise_operator.reconcile.worker import Worker

TYPED = "failed to create typed patch object (default/chat-decode-abc; apps/v1, Kind=Deployment): "

VALUE = '.spec.template.spec.containers[name="engine"].env[name="A"].value'


def message(api: Api, kind: str) -> str:
    found = api.objects["InferenceService", "chat"]["status"]["conditions"]
    return next(c["message"] for c in found if c["type"] == kind)


@pytest.mark.parametrize(
    ("status", "text", "shown"),
    [
        (
            *(500, f"{TYPED}.spec.template.spec.tolerationz: field not declared in schema"),
            "spec.decode.template.spec.tolerationz: field not declared in schema",
        ),
        (
            500,
            f"{TYPED}{VALUE}: expected string, got &value.valueUnstructured{{Value:1}}",
            f"spec.decode{VALUE.removeprefix('.spec')}: expected string, got 1",
        ),
        (
            500,
            f"{TYPED}errors:\n  .spec.template.spec.imagePullSecrets: twice\n  .spec.template.spec.selectors: unknown",
            "spec.imagePullSecrets: twice; spec.decode.template.spec.selectors: unknown",
        ),
        (
            *(422, 'Deployment.apps "x" is invalid: spec.template.spec.tolerations[0].effect: Unsupported value: "No"'),
            'Deployment.apps "x" is invalid: spec.decode.template.spec.tolerations[0].effect: Unsupported value: "No"',
        ),
    ],
)
def test_a_refused_field_has_the_name_that_the_user_gave_it(status: int, text: str, shown: str) -> None:
    child: Manifest = {"kind": "Deployment", "metadata": {"name": "d", "labels": {"phasewise.dev/role": "decode"}}}
    found = failure(child, "ApplyRefused", KubeError(status, "", text))
    assert (found.message, found.refused) == (shown, True)


def test_another_error_of_the_server_is_no_refusal() -> None:
    assert not failure({"kind": "Service", "metadata": {"name": "s"}}, "x", KubeError(500, "", "etcd is slow")).refused


async def test_a_typo_in_a_template_stalls_the_service(api: Api, worker: Worker, user_applies: Apply) -> None:
    api.faults["Deployment"] = KubeError(500, "", f"{TYPED}.spec.template.spec.tolerationz: field not declared")
    user_applies()
    await one_pass(worker)
    assert condition(api, "Stalled") == ("True", "ApplyRefused")
    assert "template.spec.tolerationz: field not declared" in message(api, "Stalled")
    assert "Event ApplyRefused" in api.writes


async def test_a_refused_deletion_is_reported_and_does_not_freeze_the_status(
    api: Api, worker: Worker, user_applies: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_applies(prefill={})
    await one_pass(worker)

    async def refuse(*_: Any) -> None:
        raise KubeError(403, "Forbidden", "a webhook keeps it")

    monkeypatch.setattr(api, "delete", refuse)
    user_applies(generation=2)
    await one_pass(worker)
    assert condition(api, "Stalled") == ("True", "DeleteRefused")
    assert "a webhook keeps it" in message(api, "Stalled")
    assert api.objects["InferenceService", "chat"]["status"]["observedGeneration"] == 2


async def test_a_refusal_whose_text_varies_makes_no_hot_loop(
    api: Api, worker: Worker, user_applies: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of the status is shown by the watch, and brings another pass."""
    tries, apply = 0, api.apply

    async def quota(manifest: Manifest, subresource: str | None = None) -> Manifest:
        nonlocal tries
        if manifest["kind"] == "Deployment":
            tries += 1
            raise KubeError(403, "Forbidden", f"exceeded quota, used: {tries}")
        answer = await apply(manifest, subresource)
        if subresource == "status":
            worker.queue.add(KEY)
        return answer

    monkeypatch.setattr(api, "apply", quota)
    user_applies()
    for _ in range(20):
        await one_pass(worker)
        worker.queue.add(KEY)
    assert tries <= 4, "two Deployments, once each, and perhaps again after the first pause"
    assert api.writes.count("InferenceService chat status") == 1
    await until("the key comes back by itself", lambda: len(worker.queue) > 0)


async def test_a_changed_spec_is_tried_at_once(api: Api, worker: Worker, user_applies: Apply) -> None:
    api.faults["Deployment"] = KubeError(403, "Forbidden", "exceeded quota")
    user_applies()
    await one_pass(worker)
    del api.faults["Deployment"]
    user_applies(generation=2, decode={"template": {"metadata": {"annotations": {"a": "b"}}}})
    await one_pass(worker)
    assert any(w.startswith("Deployment chat-decode-") for w in api.writes)


async def test_a_spec_that_cannot_be_read_is_not_tried_again_for_what_failed_before(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    api.faults["Deployment"] = KubeError(403, "Forbidden", "exceeded quota")
    user_applies()
    await one_pass(worker)
    user_applies(generation=2, slo={"ttft": "soon", "itl": "1s"})
    assert (await worker.reconciler.reconcile(KEY)).requeue_after is None
    assert condition(api, "Stalled") == ("True", "InvalidSpec")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_pause_doubles_up_to_a_limit_and_ends_with_another_intent() -> None:
    clock = Clock()
    retries = Retries(clock)
    child: Manifest = {"kind": "Service", "metadata": {"name": "s", "annotations": {}}}
    failed = Failure("Service", "s", "ApplyRefused", "no", refused=True)
    pauses: list[float] = []
    for count in range(1, 12):
        assert retries.held_back(KEY, child) is None
        assert retries.failed(KEY, child, failed).count == count
        assert retries.held_back(KEY, child) is not None
        pauses.append(round(retries.due_in(KEY) or 0, 3))
        clock.now += pauses[-1] + 0.001
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert pauses[-1] == LONGEST_SECONDS
    retries.failed(KEY, child, failed)
    other = copy.deepcopy(child)
    other["metadata"]["annotations"]["phasewise.dev/intent"] = "another"
    assert retries.held_back(KEY, other) is None
    retries.keep(KEY, [])
    assert retries.due_in(KEY) is None
    assert retries.attempts == {}


async def test_children_of_a_deleted_service_of_the_same_name_are_waited_for(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    await one_pass(worker)
    before = api.objects["Service", "chat"]
    worker.reconciler.store.drop(INFERENCE_SERVICE, api.objects.pop(("InferenceService", "chat")))
    user_applies(uid="uid-2")
    await one_pass(worker)
    assert api.objects["Service", "chat"] == before
    assert condition(api, "Stalled") == ("False", "Progressing")
    assert condition(api, "Reconciling")[0] == "True"
    for ref in [ref for ref in api.objects if ref[0] != "InferenceService"]:
        del api.objects[ref]
    assert not worker.queue._waiting
    async with asyncio.timeout(5):
        while ("Service", "chat") not in api.objects:
            await one_pass(worker)


async def test_in_a_namespace_that_is_being_deleted_nothing_is_reported_and_nothing_loops(
    api: Api, worker: Worker, user_applies: Apply, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'services "chat" is forbidden: unable to create new content in namespace x because it is being terminated'
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Service", "PodDisruptionBudget", "Deployment", "Event"):
        api.faults[kind] = KubeError(403, "Forbidden", text)
    user_applies()
    await one_pass(worker)
    assert api.writes == []
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    result = await worker.reconciler.reconcile(KEY)
    assert (result.complete, result.requeue_after) == (False, 30.0)
