"""Several releases in a cluster: each has a Lease of its own, and sees those of the others."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from tests.chart.conftest import CHART, Render, environment, of_kind
from tests.chart.test_chart import Run
from tests.chart.test_rights import granted

from phasewise_operator.settings import DEFAULT_LEASE, Settings


def lease_name_of(render: Run, release: str) -> str:
    """As the operator of that release is given it, which may change that Lease and no other."""
    done = render(release)
    assert done.returncode == 0, done.stderr
    manifests = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
    name = Settings.from_env(environment(manifests)).lease_name
    (role,) = of_kind(manifests, "Role")
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert role["rules"] == [
        lease | {"verbs": ["create"]},
        lease | {"resourceNames": [name], "verbs": ["get", "update"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    ]
    return name


def test_each_release_has_a_lease_of_its_own_which_alone_its_operator_may_change(helm: Run) -> None:
    def install(release: str) -> subprocess.CompletedProcess[str]:
        return helm("template", release, str(CHART), "--namespace=system", "--kube-version=1.34.0")

    assert lease_name_of(install, "phasewise") == DEFAULT_LEASE, "of the version before: an upgrade has one leader"
    assert lease_name_of(install, "staging") == "staging-phasewise-operator"


@pytest.mark.parametrize("values", [(), ('watchNamespaces=["team-a"]',)])
def test_the_operator_may_list_the_leases_of_other_releases(render: Render, values: tuple[str, ...]) -> None:
    manifests = render(*values)
    role = next(r for r in of_kind(manifests, "ClusterRole") if r["metadata"]["name"].endswith(":leases"))
    assert granted(role) == {("coordination.k8s.io", "leases"): {"list"}}
    bound = [b for b in of_kind(manifests, "ClusterRoleBinding") if b["roleRef"]["name"] == role["metadata"]["name"]]
    assert [b["subjects"] for b in bound] == [
        [{"kind": "ServiceAccount", "name": "phasewise-operator", "namespace": "system"}]
    ]
