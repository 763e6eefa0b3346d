"""The chart: what it renders, and what its values refuse."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
import tomllib
import yaml
from tests.chart.conftest import CHART, Render, environment, of_kind, the_container

from phasewise_operator import __version__
from phasewise_operator.settings import Settings
from phasewise_runtime import contract

ROOT = CHART.parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]

# --- as it is installed by default -------------------------------------------------------------------------


def test_helm_finds_nothing_to_complain_about(helm: Run) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_default_manifests(render: Render) -> None:
    kinds = sorted(manifest["kind"] for manifest in render())
    assert kinds == [
        *5 * ["ClusterRole"],
        *2 * ["ClusterRoleBinding"],
        "CustomResourceDefinition",
        "CustomResourceDefinition",
        "Deployment",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
        *3 * ["ValidatingAdmissionPolicy"],
        *3 * ["ValidatingAdmissionPolicyBinding"],
    ]


def test_one_version_everywhere() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {chart["version"], chart["appVersion"], project["version"]} == {__version__}


def test_schema_and_values_name_the_same_keys() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert values.keys() == schema.keys() - {"global"}
    for name, value in values.items():
        if "properties" in schema[name] and name != "affinity":
            assert value.keys() == schema[name]["properties"].keys()


def test_the_operator_understands_its_environment(render: Render) -> None:
    settings = Settings.from_env(environment(render()))
    assert settings.runtime_image == f"phasewise/runtime:{__version__}"
    assert settings.engine_image == "vllm/vllm-openai:v0.32.0"
    assert settings.image_pull_policy == "IfNotPresent"
    assert settings.watch_namespaces == ()
    assert settings.log_level == "INFO"


def test_values_reach_the_operator(render: Render) -> None:
    manifests = render(
        'image={"repository":"registry.local:5000/pw/operator","tag":"dev","pullPolicy":"Never"}',
        'runtimeImage={"repository":"registry.local:5000/pw/runtime","tag":"dev"}',
        'engineImage="vllm-cpu:1"',
        'watchNamespaces=["b","a"]',
        'logLevel="debug"',
    )
    settings = Settings.from_env(environment(manifests))
    assert the_container(manifests)["image"] == "registry.local:5000/pw/operator:dev"
    assert settings.runtime_image == "registry.local:5000/pw/runtime:dev"
    assert settings.engine_image == "vllm-cpu:1"
    assert settings.image_pull_policy == "Never"
    assert settings.watch_namespaces == ("a", "b")
    assert settings.log_level == "DEBUG"


def test_the_lease_is_in_the_operators_own_namespace_under_the_pods_name(render: Render) -> None:
    entries = [entry for entry in the_container(render())["env"] if "valueFrom" in entry]
    fields = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in entries}
    assert fields == {
        contract.ENV_POD_NAME: "metadata.name",
        contract.ENV_POD_UID: "metadata.uid",
        contract.ENV_NAMESPACE: "metadata.namespace",
    }


def test_the_user_has_a_name_because_kopf_asks_for_it(render: Render) -> None:
    """Its id is in no passwd file: without a name in the environment Kopf fails as soon as it starts to watch."""
    assert environment(render())["USER"]


def test_probes_and_metrics_are_where_the_operator_serves_them(render: Render) -> None:
    manifests = render()
    container = the_container(manifests)
    assert container["ports"] == [{"name": "http", "containerPort": contract.OPERATOR_PORT, "protocol": "TCP"}]
    assert container["startupProbe"]["httpGet"] == {"path": contract.PATH_LIVE, "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": contract.PATH_LIVE, "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": contract.PATH_READY, "port": "http"}
    (service,) = of_kind(manifests, "Service")
    (deployment,) = of_kind(manifests, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["ports"][0]["targetPort"] == "http"


def test_the_pod_keeps_to_the_restricted_standard(render: Render) -> None:
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "volumes" not in pod
    assert the_container(render())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


# --- CRDs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "annotations"),
    [((), {"helm.sh/resource-policy": "keep"}), (("crds.keep=false",), None)],
    ids=["kept", "not kept"],
)
def test_the_crds_are_the_generated_ones(render: Render, values: tuple[str, ...], annotations: object) -> None:
    for crd in of_kind(render(*values), "CustomResourceDefinition"):
        plural = crd["spec"]["names"]["plural"]
        assert crd["spec"] == yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text())["spec"]
        assert crd["metadata"].get("annotations") == annotations


def test_the_crds_can_be_left_out(render: Render) -> None:
    assert of_kind(render("crds.install=false"), "CustomResourceDefinition") == []


# --- names and images --------------------------------------------------------------------------------------


def test_an_image_is_named_by_its_digest_where_one_is_given(render: Render) -> None:
    digest = f"sha256:{'0' * 64}"
    manifests = render(f'image.digest="{digest}"', f'runtimeImage.digest="{digest}"')
    assert the_container(manifests)["image"] == f"phasewise/operator@{digest}"
    assert Settings.from_env(environment(manifests)).runtime_image == f"phasewise/runtime@{digest}"


@pytest.mark.parametrize(
    ("value", "name"),
    [('nameOverride="inference"', "phasewise-inference-operator"), ('fullnameOverride="pw"', "pw")],
)
def test_names_can_be_set(render: Render, value: str, name: str) -> None:
    manifests = render(value)
    (deployment,) = of_kind(manifests, "Deployment")
    assert deployment["metadata"]["name"] == name
    (account,) = of_kind(manifests, "ServiceAccount")
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"] == name
    assert environment(manifests)["PHASEWISE_ROUTER_ROLE"] == f"system:{name}:router"


def test_the_operator_can_have_a_priority(render: Render) -> None:
    (deployment,) = of_kind(render('priorityClassName="system-cluster-critical"'), "Deployment")
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == "system-cluster-critical"
    assert "priorityClassName" not in of_kind(render(), "Deployment")[0]["spec"]["template"]["spec"]


# --- options -----------------------------------------------------------------------------------------------


def test_a_service_monitor_finds_the_metrics(render: Render) -> None:
    manifests = render('serviceMonitor={"enabled":true,"labels":{"release":"prometheus"},"interval":"15s"}')
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    (service,) = of_kind(manifests, "Service")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"] == [
        {"port": service["spec"]["ports"][0]["name"], "path": contract.PATH_METRICS, "interval": "15s"}
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("replica=3", "additional properties 'replica' not allowed"),
        ("replicas=0", "at '/replicas': minimum: got 0, want 1"),
        ('replicas="two"', "at '/replicas': got string, want integer"),
        ('image.repo="x"', "at '/image': additional properties 'repo' not allowed"),
        ("image.tag=1.0", "at '/image/tag': got number, want string"),
        ('image.pullPolicy="always"', "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
        (
            'image.repository="phasewise/operator:dev"',
            "at '/image/repository': 'phasewise/operator:dev' does not match",
        ),
        ('engineImage=""', "at '/engineImage': minLength"),
        ('image.digest="0123"', "at '/image/digest': '0123' does not match pattern"),
        ('podTemplates="safe"', "at '/podTemplates': value must be one of 'Safe', 'Full'"),
        ('rbac.podDeletionCost="no"', "at '/rbac/podDeletionCost': got string, want boolean"),
        ('fullnameOverride="My.Name"', "at '/fullnameOverride': 'My.Name' does not match pattern"),
        ("engineImage={}", "at '/engineImage': got object, want string"),
        ('logLevel="verbose"', "at '/logLevel': value must be one of 'debug', 'info', 'warning', 'error'"),
        ('watchNamespaces="default"', "at '/watchNamespaces': got string, want array"),
        ('watchNamespaces=["Team_A"]', "at '/watchNamespaces/0': 'Team_A' does not match pattern"),
        ('crds.keep="yes"', "at '/crds/keep': got string, want boolean"),
        ('resources={"limits":{"memory":"1GB"}}', "at '/resources/limits/memory': '1GB' does not match pattern"),
        ('resources={"cpu":1}', "at '/resources': additional properties 'cpu' not allowed"),
        ('nodeSelector={"gpu":true}', "at '/nodeSelector/gpu': got boolean, want string"),
        ("networkPolicy=null", "missing property 'networkPolicy'"),
        ("rbac=null", "missing property 'rbac'"),
        ('networkPolicy.enabled="no"', "at '/networkPolicy/enabled': got string, want boolean"),
        ('networkPolicy.monitoringNamespace="Prom"', "at '/networkPolicy/monitoringNamespace': 'Prom' does not match"),
        ('serviceMonitor.interval="often"', "at '/serviceMonitor/interval': 'often' does not match pattern"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(template: Run, value: str, message: str) -> None:
    done = template(value)
    assert done.returncode != 0
    assert message in done.stderr
