"""The chart's values of NetworkPolicies and PodMonitors, compared with what the operator renders."""

from __future__ import annotations

import json

import pytest
from tests.chart.conftest import Render, environment, of_kind
from tests.operator.conftest import IMAGES, minimal_spec

from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_operator.render.context import Context
from phasewise_operator.render.engine import engine_template
from phasewise_operator.render.router import router_children
from phasewise_operator.scaling import scrape
from phasewise_operator.settings import Settings
from phasewise_runtime import contract


def test_network_policies_are_on_and_let_this_releases_pods_read_metrics(render: Render) -> None:
    manifests = render()
    settings = Settings.from_env(environment(manifests))
    (deployment,) = of_kind(manifests, "Deployment")
    assert settings.network_policy
    assert settings.pod_labels == deployment["spec"]["selector"]["matchLabels"]
    assert (settings.monitoring_namespace, settings.monitoring_pod_labels) == ("", {})


def test_network_policies_can_be_switched_off_and_can_let_prometheus_read(render: Render) -> None:
    values = '{"enabled":false,"monitoringNamespace":"prom","monitoringPodLabels":{"app":"prometheus"}}'
    settings = Settings.from_env(environment(render(f"networkPolicy={values}")))
    assert not settings.network_policy
    assert (settings.monitoring_namespace, settings.monitoring_pod_labels) == ("prom", {"app": "prometheus"})


@pytest.mark.parametrize("namespaces", [[], ["team-a", "team-b"]])
def test_pod_monitors_find_the_metrics_of_engines_and_routers(namespaces: list[str], render: Render) -> None:
    """Compared with the pods that are rendered: their labels and the names of their ports."""
    value = 'podMonitor={"enabled":true,"labels":{"release":"prometheus"},"interval":"15s"}'
    monitors = of_kind(render(value, f"watchNamespaces={json.dumps(namespaces)}"), "PodMonitor")
    ctx = Context("default", "chat", "uid", InferenceServiceSpec.model_validate(minimal_spec()), IMAGES)
    router = next(c for c in router_children(ctx) if c["kind"] == "Deployment")["spec"]["template"]
    pods = {contract.ROUTER: router, **{role: engine_template(ctx, role).template for role in contract.ENGINE_ROLES}}
    read: dict[str, int] = {}
    for monitor in monitors:
        spec = monitor["spec"]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert spec["namespaceSelector"] == ({"matchNames": namespaces} if namespaces else {"any": True})
        (expression,), (endpoint,) = spec["selector"]["matchExpressions"], spec["podMetricsEndpoints"]
        assert (endpoint["path"], endpoint["interval"]) == (contract.PATH_METRICS, "15s")
        for role, pod in pods.items():
            labels = pod["metadata"]["labels"]
            if labels[expression["key"]] in expression["values"]:
                assert spec["selector"]["matchLabels"].items() <= labels.items()
                assert set(spec["podTargetLabels"]) <= labels.keys()
                ports = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
                read[role] = ports[endpoint["port"]]
    assert read == scrape.PORTS, "where the operator reads them"
