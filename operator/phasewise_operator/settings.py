"""The operator's settings, read once from the environment and validated: the one place that knows their names.

The chart sets every one of them. Imports nothing of the operator.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from phasewise_runtime import contract

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_POD_TEMPLATES = ("Safe", "Full")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


DEFAULT_LEASE = "phasewise-operator"
"""The Lease of the release named phasewise, and of every release before each had its own."""


class SettingsError(ValueError):
    """A setting cannot be used; the message names the variable and what it takes."""


@dataclass(frozen=True)
class Settings:
    runtime_image: str = "phasewise/runtime:dev"
    """Runs the router, and brings the launcher into engine pods."""
    engine_image: str = "vllm/vllm-openai:v0.32.0"
    """Engine image of services that name none."""
    image_pull_policy: str = "IfNotPresent"
    watch_namespaces: tuple[str, ...] = ()
    """Empty: all of them."""
    pod_templates: str = "Safe"
    """Safe: only what api/pod_templates.py lists."""
    router_role: str = "phasewise-router"
    """Name of the ClusterRole that the routers' accounts are bound to."""
    pod_deletion_cost: bool = True
    """The operator may annotate pods with their deletion cost."""
    log_level: str = "INFO"
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """In the Lease: the pod's name, so that a restarted container takes its own Lease back at once."""
    namespace: str = "default"
    """The operator's own: its Lease lies there."""
    pod_uid: str = ""
    """Of the operator's own pod, for Events on it; empty outside of a cluster."""
    port: int = contract.OPERATOR_PORT
    lease_name: str = DEFAULT_LEASE
    """One for each release: its replicas contend for it."""
    network_policy: bool = True
    """Whether services get NetworkPolicies."""
    pod_labels: Mapping[str, str] = field(default_factory=lambda: {contract.LABEL_NAME: "phasewise-operator"})
    """Of the operator's own pods, by which NetworkPolicies let them read metrics."""
    monitoring_namespace: str = ""
    """Its pods may read metrics, too; empty: there is none."""
    monitoring_pod_labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of pods in monitoring_namespace; empty: all of them."""
    lease_seconds: float = 15.0
    """A holder that has not renewed for so long may be replaced."""
    renew_deadline_seconds: float = 10.0
    """A holder that could not renew for so long stops acting by itself."""
    retry_seconds: float = 2.0
    workers: int = 8
    resync_seconds: float = 300.0
    """Every service is looked at again at least so often."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Raises SettingsError for a value that cannot be used."""
        base = cls()
        level = env.get("PHASEWISE_LOG_LEVEL", base.log_level).upper()
        _one_of("PHASEWISE_LOG_LEVEL", level, _LOG_LEVELS)
        policy = env.get("PHASEWISE_IMAGE_PULL_POLICY", base.image_pull_policy)
        _one_of("PHASEWISE_IMAGE_PULL_POLICY", policy, _PULL_POLICIES)
        templates = env.get("PHASEWISE_POD_TEMPLATES", base.pod_templates)
        _one_of("PHASEWISE_POD_TEMPLATES", templates, _POD_TEMPLATES)
        deletion_cost = env.get("PHASEWISE_POD_DELETION_COST", "true")
        _one_of("PHASEWISE_POD_DELETION_COST", deletion_cost, ("true", "false"))
        return cls(
            runtime_image=_image(env, "PHASEWISE_RUNTIME_IMAGE", base.runtime_image),
            engine_image=_image(env, "PHASEWISE_ENGINE_IMAGE", base.engine_image),
            image_pull_policy=policy,
            watch_namespaces=_namespaces(env.get("PHASEWISE_WATCH_NAMESPACES", "")),
            pod_templates=templates,
            router_role=env.get("PHASEWISE_ROUTER_ROLE", base.router_role),
            pod_deletion_cost=deletion_cost == "true",
            log_level=level,
            identity=env.get(contract.ENV_POD_NAME, base.identity),
            namespace=env.get(contract.ENV_NAMESPACE, base.namespace),
            pod_uid=env.get(contract.ENV_POD_UID, ""),
            lease_name=_lease_name(env.get("PHASEWISE_LEASE_NAME", base.lease_name)),
            port=_port(env.get("PHASEWISE_PORT", str(base.port))),
            network_policy=_boolean(env, "PHASEWISE_NETWORK_POLICY", base.network_policy),
            pod_labels=_labels(env, "PHASEWISE_POD_LABELS") or base.pod_labels,
            monitoring_namespace=_namespace(env, "PHASEWISE_MONITORING_NAMESPACE"),
            monitoring_pod_labels=_labels(env, "PHASEWISE_MONITORING_POD_LABELS"),
        )

    @property
    def logging_level(self) -> int:
        return logging.getLevelNamesMapping()[self.log_level]


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(f"{name} is {value!r}; write one of {', '.join(allowed)}")


def _image(env: Mapping[str, str], name: str, default: str) -> str:
    value = env.get(name, default).strip()
    if not value or any(c.isspace() for c in value):
        raise SettingsError(f"{name} is {value!r}; write an image reference such as {default}")
    return value


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(sorted({n.strip() for n in text.split(",") if n.strip()}))
    for name in names:
        if not _DNS_LABEL.fullmatch(name):
            raise SettingsError(f"PHASEWISE_WATCH_NAMESPACES names {name!r}; write namespace names, comma-separated")
    return names


def _lease_name(text: str) -> str:
    if not _DNS_LABEL.fullmatch(text):
        raise SettingsError(f"PHASEWISE_LEASE_NAME is {text!r}; write a name such as {DEFAULT_LEASE}")
    return text


def _namespace(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "").strip()
    if value and not _DNS_LABEL.fullmatch(value):
        raise SettingsError(f"{name} is {value!r}; write the name of a namespace, or leave it out")
    return value


def _boolean(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name, str(default)).lower()
    _one_of(name, text, ("true", "false"))
    return text == "true"


def _labels(env: Mapping[str, str], name: str) -> dict[str, str]:
    """Labels as JSON. What is not understood must not become no labels: those select all pods."""
    text = env.get(name, "").strip() or "{}"
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict):
        labels = cast("dict[object, object]", found)
        if all(isinstance(part, str) for item in labels.items() for part in item):
            return cast("dict[str, str]", labels)
    raise SettingsError(f'{name} is {text!r}; write labels as JSON, such as {{"app": "prometheus"}}')


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise SettingsError(f"PHASEWISE_PORT is {text!r}; write a port number from 1 to 65535")
    return int(text)
