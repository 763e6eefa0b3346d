"""Settings are read from the environment; what cannot be used is refused by name."""

from __future__ import annotations

import pytest

from phasewise_operator.settings import Settings, SettingsError


def test_everything_has_a_default() -> None:
    assert Settings.from_env({}).watch_namespaces == ()


def test_values_are_taken() -> None:
    settings = Settings.from_env(
        {
            "PHASEWISE_WATCH_NAMESPACES": "b, a,,b",
            "PHASEWISE_LOG_LEVEL": "debug",
            "PHASEWISE_RUNTIME_IMAGE": "example/runtime:2",
            "PHASEWISE_NETWORK_POLICY": "false",
            "PHASEWISE_POD_LABELS": '{"app": "operator"}',
            "PHASEWISE_MONITORING_NAMESPACE": "monitoring",
            "PHASEWISE_MONITORING_POD_LABELS": '{"app": "prometheus"}',
            "POD_NAME": "operator-1",
            "POD_NAMESPACE": "phasewise",
            "POD_UID": "uid-1",
            "PHASEWISE_LEASE_NAME": "staging-phasewise-operator",
        }
    )
    assert settings.watch_namespaces == ("a", "b")
    assert (settings.network_policy, settings.pod_labels) == (False, {"app": "operator"})
    assert (settings.monitoring_namespace, settings.monitoring_pod_labels) == ("monitoring", {"app": "prometheus"})
    assert settings.logging_level == 10
    assert (settings.identity, settings.namespace, settings.pod_uid) == ("operator-1", "phasewise", "uid-1")
    assert settings.lease_name == "staging-phasewise-operator"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PHASEWISE_WATCH_NAMESPACES", "Not_A_Namespace"),
        ("PHASEWISE_LOG_LEVEL", "LOUD"),
        ("PHASEWISE_IMAGE_PULL_POLICY", "Sometimes"),
        ("PHASEWISE_POD_TEMPLATES", "safe"),
        ("PHASEWISE_POD_DELETION_COST", "no"),
        ("PHASEWISE_RUNTIME_IMAGE", " "),
        ("PHASEWISE_LEASE_NAME", ""),
        ("PHASEWISE_LEASE_NAME", "A Lease"),
        ("PHASEWISE_PORT", "70000"),
        ("PHASEWISE_PORT", "http"),
        ("PHASEWISE_NETWORK_POLICY", "off"),
        ("PHASEWISE_POD_LABELS", "app=operator"),
        ("PHASEWISE_POD_LABELS", '{"app": 1}'),
        ("PHASEWISE_MONITORING_NAMESPACE", "Not_A_Namespace"),
        ("PHASEWISE_MONITORING_POD_LABELS", '["app"]'),
    ],
)
def test_unusable_settings_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_env({name: value})
