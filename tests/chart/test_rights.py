"""What the chart grants the operator, and what the API server refuses by the chart's admission policies."""

from __future__ import annotations

import json
from itertools import product

import pytest
from tests.chart.conftest import Manifest, Render, environment, of_kind

from phasewise_operator.api import pod_templates
from phasewise_operator.kinds import CHILD_KINDS, EVENT, INFERENCE_SERVICE, NODE, POD, POOL_SCALER
from phasewise_operator.settings import Settings
from phasewise_runtime import contract

WRITE = {"get", "list", "watch", "create", "patch", "delete"}
READ = {"get", "list", "watch"}


def granted(role: Manifest) -> dict[tuple[str, str], set[str]]:
    """Verbs by API group and resource."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group, resource in product(rule["apiGroups"], rule["resources"]):
            found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def operator_role(manifests: list[Manifest]) -> Manifest:
    return next(r for r in of_kind(manifests, "ClusterRole") if r["metadata"]["name"] == "system:phasewise-operator")


# --- rights ------------------------------------------------------------------------------------------------


def test_the_operator_may_do_what_it_does_and_no_more(render: Render) -> None:
    """The rules are generated from phasewise_operator.kinds; a verb that is added there is added here by hand."""
    used = {(kind.group, kind.plural): WRITE for kind in CHILD_KINDS}
    used[INFERENCE_SERVICE.group, INFERENCE_SERVICE.plural] = READ
    used[INFERENCE_SERVICE.group, f"{INFERENCE_SERVICE.plural}/status"] = {"patch"}
    used[POOL_SCALER.group, f"{POOL_SCALER.plural}/status"] = {"patch"}
    used[POD.group, POD.plural] = {*READ, "patch"}
    used["rbac.authorization.k8s.io", "clusterroles"] = {"bind"}
    used[EVENT.group, EVENT.plural] = {"list", "create"}
    used[NODE.group, NODE.plural] = {"list", "watch"}
    assert granted(operator_role(render())) == used


def test_the_operator_may_write_no_role_and_bind_one_that_reads_pods(render: Render) -> None:
    manifests = render()
    router = environment(manifests)["PHASEWISE_ROUTER_ROLE"]
    (bind,) = (rule for rule in operator_role(manifests)["rules"] if "bind" in rule["verbs"])
    assert bind["resourceNames"] == [router]
    (role,) = (r for r in of_kind(manifests, "ClusterRole") if r["metadata"]["name"] == router)
    assert granted(role) == {("", "pods"): READ}
    assert not {("rbac.authorization.k8s.io", "roles")} & granted(operator_role(manifests)).keys()


@pytest.mark.parametrize(("value", "kept"), [("crds.keep=true", "keep"), ("crds.keep=false", None)])
def test_routers_keep_their_right_as_long_as_services_are_kept(value: str, kept: str | None, render: Render) -> None:
    """After `helm uninstall` services go on serving: their routers still have to find the engines."""
    manifests = render(value)
    name = environment(manifests)["PHASEWISE_ROUTER_ROLE"]
    (role,) = (r for r in of_kind(manifests, "ClusterRole") if r["metadata"]["name"] == name)
    assert role["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == kept


def test_without_the_deletion_cost_the_operator_may_only_read_pods(render: Render) -> None:
    manifests = render("rbac.podDeletionCost=false")
    assert granted(operator_role(manifests))["", "pods"] == READ
    assert not Settings.from_env(environment(manifests)).pod_deletion_cost
    assert policies(manifests) == {f"{name}.phasewise-operator.system" for name in ("pod-templates", "own-objects")}


def test_nothing_may_read_secrets_or_everything(render: Render) -> None:
    manifests = render()
    for role in [*of_kind(manifests, "ClusterRole"), *of_kind(manifests, "Role")]:
        for group, resource in granted(role):
            assert resource not in {"secrets", "*"}, role["metadata"]["name"]
            assert group != "*", role["metadata"]["name"]


def test_with_namespaces_the_operator_has_rights_in_these_only(render: Render) -> None:
    manifests = render('watchNamespaces=["team-a","team-b"]')
    (others,) = of_kind(manifests, "ClusterRoleBinding")
    assert others["roleRef"]["name"].endswith(":leases"), "to see the Leases of other releases"
    bound = {
        binding["metadata"]["namespace"]: binding
        for binding in of_kind(manifests, "RoleBinding")
        if binding["roleRef"]["kind"] == "ClusterRole"
    }
    assert bound.keys() == {"team-a", "team-b"}
    for binding in bound.values():
        assert binding["roleRef"]["name"] == operator_role(manifests)["metadata"]["name"]
        assert binding["subjects"][0]["namespace"] == "system"


# --- admission policies ------------------------------------------------------------------------------------


def policies(manifests: list[Manifest]) -> set[str]:
    """Names of the policies; each is bound under its own name, and denies."""
    bindings = {m["metadata"]["name"]: m["spec"] for m in of_kind(manifests, "ValidatingAdmissionPolicyBinding")}
    names = {m["metadata"]["name"] for m in of_kind(manifests, "ValidatingAdmissionPolicy")}
    assert {name: spec["policyName"] for name, spec in bindings.items()} == {name: name for name in names}
    assert all(spec["validationActions"] == ["Deny"] for spec in bindings.values())
    return names


def policy(manifests: list[Manifest], name: str) -> Manifest:
    found = of_kind(manifests, "ValidatingAdmissionPolicy")
    return next(m["spec"] for m in found if m["metadata"]["name"].startswith(name))


def test_the_policy_of_pod_templates_is_the_operators_own_list(render: Render) -> None:
    spec = policy(render(), "pod-templates.")
    assert {key: spec[key] for key in ("variables", "validations")} == pod_templates.policy()
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == ([INFERENCE_SERVICE.group], [INFERENCE_SERVICE.plural])


@pytest.mark.parametrize("name", ["pod-deletion-cost.", "own-objects."])
def test_the_operators_writes_are_judged_and_nobody_elses(name: str, render: Render) -> None:
    manifests = render()
    (account,) = of_kind(manifests, "ServiceAccount")
    (condition,) = policy(manifests, name)["matchConditions"]
    user = f"system:serviceaccount:system:{account['metadata']['name']}"
    assert condition["expression"] == f"request.userInfo.username == '{user}'"
    ours = f"k == '{contract.LABEL_MANAGED_BY}' && oldObject.metadata.labels[k] == '{contract.MANAGED_BY}'"
    assert ours in json.dumps(policy(manifests, name))


def test_the_operator_may_write_children_of_its_own_only(render: Render) -> None:
    """The rules are generated: a new child kind is among them."""
    rules = policy(render(), "own-objects.")["matchConstraints"]["resourceRules"]
    judged = {(rule["apiGroups"][0], rule["resources"][0]) for rule in rules}
    assert judged == {(kind.group, kind.plural) for kind in CHILD_KINDS}
    assert all(rule["operations"] == ["CREATE", "UPDATE", "DELETE"] for rule in rules)


def test_the_policy_of_pods_allows_the_annotation_that_the_operator_writes(render: Render) -> None:
    assert f"['{contract.ANNOTATION_DELETION_COST}']" in json.dumps(policy(render(), "pod-deletion-cost."))


@pytest.mark.parametrize(
    ("values", "left"),
    [
        (('podTemplates="Full"',), {"own-objects", "pod-deletion-cost"}),
        (("admissionPolicies.enabled=false",), set[str]()),
        (('podTemplates="Full"', "rbac.podDeletionCost=false"), {"own-objects"}),
    ],
    ids=["Full", "none", "no patches of pods"],
)
def test_policies_can_be_left_out(render: Render, values: tuple[str, ...], left: set[str]) -> None:
    assert policies(render(*values)) == {f"{name}.phasewise-operator.system" for name in left}


def test_pod_templates_reach_the_operator(render: Render) -> None:
    assert Settings.from_env(environment(render())).pod_templates == "Safe"
    assert Settings.from_env(environment(render('podTemplates="Full"'))).pod_templates == "Full"


def test_with_namespaces_templates_are_refused_in_these_only(render: Render) -> None:
    manifests = render('watchNamespaces=["team-a"]')
    bindings = of_kind(manifests, "ValidatingAdmissionPolicyBinding")
    (spec,) = (m["spec"] for m in bindings if m["metadata"]["name"].startswith("pod-templates."))
    (expression,) = spec["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert expression == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a"]}
