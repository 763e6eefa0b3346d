"""What the chart permits, in passes: pod templates, the routers' right to see pods, the deletion cost of pods."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from tests.operator.conftest import FULL_TEMPLATES
from tests.operator.reconcile.fake_api import KEY, Api, Apply, condition, one_pass

from phasewise_operator.kinds import POD, ROLE_BINDING, SERVICE, Manifest
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.reconcile.worker import Worker
from phasewise_operator.render.context import Permissions
from phasewise_runtime import contract

ON_THE_NODE = {"template": {"spec": {"hostNetwork": True}}}


async def test_a_template_that_is_not_safe_stalls_while_what_runs_is_kept(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    """As after an upgrade, for a service that was made before Safe."""
    worker = dataclasses.replace(worker, reconciler=dataclasses.replace(worker.reconciler, permissions=FULL_TEMPLATES))
    user_applies(decode=ON_THE_NODE)
    await one_pass(worker)
    running = {ref: live for ref, live in api.objects.items() if ref[0] == "Deployment"}
    worker.reconciler.store.drop(SERVICE, api.objects.pop(("Service", "chat")))
    worker = dataclasses.replace(worker, reconciler=dataclasses.replace(worker.reconciler, permissions=Permissions()))
    worker.queue.add(KEY)
    await one_pass(worker)
    assert condition(api, "Stalled") == ("True", "InvalidSpec")
    conditions = api.objects["InferenceService", "chat"]["status"]["conditions"]
    message = next(c["message"] for c in conditions if c["type"] == "Stalled")
    assert message.startswith("spec.decode.template.spec.hostNetwork: unknown, or not allowed in a pod template")
    assert {ref: live for ref, live in api.objects.items() if ref[0] == "Deployment"} == running
    assert ("Service", "chat") in api.objects, "children that depend on no engine are repaired"


def bindings(api: Api) -> set[str]:
    return {name for kind, name in api.objects if kind == "RoleBinding"}


def add_binding_of_before(api: Api, worker: Worker) -> None:
    """The RoleBinding of a version that made a Role for each service."""
    (new,) = (live for (kind, _), live in api.objects.items() if kind == "RoleBinding")
    old: Manifest = copy.deepcopy(new)
    old["metadata"] |= {"name": "chat-router", "uid": "uid-old", "resourceVersion": "1000"}
    api.objects["RoleBinding", "chat-router"] = old
    worker.reconciler.store.put(ROLE_BINDING, copy.deepcopy(old))


async def test_the_binding_of_a_version_before_goes_when_the_new_one_is_there(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    await one_pass(worker)
    (new,) = bindings(api)
    add_binding_of_before(api, worker)
    worker.queue.add(KEY)
    await one_pass(worker)
    assert bindings(api) == {new}


async def test_routers_keep_their_binding_while_the_new_one_is_refused(
    api: Api, worker: Worker, user_applies: Apply
) -> None:
    user_applies()
    await one_pass(worker)
    before = bindings(api)
    add_binding_of_before(api, worker)
    renamed = Permissions(router_role="another:router")
    worker = dataclasses.replace(worker, reconciler=dataclasses.replace(worker.reconciler, permissions=renamed))
    api.faults["RoleBinding"] = KubeError(403, "Forbidden", "attempting to grant RBAC permissions not currently held")
    worker.queue.add(KEY)
    await one_pass(worker)
    assert not any(w.startswith("delete") for w in api.writes)
    assert condition(api, "Stalled") == ("True", "ApplyRefused")
    del api.faults["RoleBinding"]
    await one_pass(worker)
    assert len(bindings(api)) == 1
    assert bindings(api).isdisjoint(before), "a binding's role cannot be changed: the new one has a name of its own"


@pytest.mark.parametrize("permitted", [True, False])
async def test_without_the_right_to_patch_pods_none_is_tried(
    permitted: bool, api: Api, worker: Worker, user_applies: Apply
) -> None:
    reconciler = dataclasses.replace(worker.reconciler, pod_deletion_cost=permitted)
    worker = dataclasses.replace(worker, reconciler=reconciler)
    user_applies(decode={"replicas": {"min": 2}}, scaling={"mode": "Manual"})
    await one_pass(worker)
    (deployment,) = (
        live for (kind, name), live in api.objects.items() if kind == "Deployment" and name.startswith("chat-decode")
    )
    for name in ("a", "b"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels, "resourceVersion": "9"}
        api.objects["Pod", name] = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
        worker.reconciler.store.put(POD, copy.deepcopy(api.objects["Pod", name]))
    user_applies(generation=2, decode={"replicas": {"min": 1}}, scaling={"mode": "Manual"})
    await one_pass(worker)
    assert api.objects[deployment["kind"], deployment["metadata"]["name"]]["spec"]["replicas"] == 1
    cheap = [name for name in ("a", "b") if contract.ANNOTATION_DELETION_COST in str(api.objects["Pod", name])]
    assert len(cheap) == int(permitted)
    assert any(w.startswith("Pod ") for w in api.writes) is permitted
