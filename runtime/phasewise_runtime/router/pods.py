"""An engine pod as the router knows it, read from the API server or from a file. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from phasewise_runtime.contract import (
    ENGINE_PORT,
    ENGINE_ROLES,
    ENV_ENGINE_CONFIG,
    LABEL_FINGERPRINT,
    LABEL_GPUS,
    LABEL_REVISION,
    LABEL_ROLE,
)

_COUNT = re.compile(r"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Pod:
    """One engine pod as it was last seen."""

    uid: str
    name: str
    role: str
    address: str
    fingerprint: str
    ready: bool
    terminating: bool = False
    port: int = ENGINE_PORT
    model: str = ""
    """The name under which its engine serves the model; empty where that is not known."""
    aggregated: bool = False
    """A decode pod of a revision without a prefill pool: it is made for both phases."""
    gpus: int = 0
    revision: str = ""
    """Empty where it is not known, as with pods of a file."""

    @property
    def size(self) -> int:
        """Its capacity beside other pods of its kind, in GPUs; on CPU each pod counts as one."""
        return self.gpus or 1

    @property
    def usable(self) -> bool:
        return self.ready and not self.terminating and bool(self.address)

    @property
    def base_url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    @property
    def state(self) -> str:
        if self.terminating:
            return "terminating"
        return "ready" if self.usable else "not_ready"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A usable pod as one request sees it."""

    pod: Pod
    load: int = 0
    """Requests this router has placed there."""
    ejected: bool = False
    tried: int = 0
    """Times this request has failed there."""


def pod_from_api(raw: Mapping[str, Any]) -> Pod | None:
    """Read a Pod object of the API server; None where it is no engine pod."""
    meta: Mapping[str, Any] = raw.get("metadata") or {}
    status: Mapping[str, Any] = raw.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    role = labels.get(LABEL_ROLE, "")
    if role not in ENGINE_ROLES or not meta.get("uid"):
        return None
    config, gpus = _engine_config(raw), labels.get(LABEL_GPUS, "")
    return Pod(
        uid=str(meta["uid"]),
        name=str(meta.get("name", "")),
        role=role,
        address=str(status.get("podIP") or ""),
        fingerprint=labels.get(LABEL_FINGERPRINT, ""),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ()),
        terminating=bool(meta.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        model=_text(config.get("model_name")),
        aggregated=config.get("disaggregated") is False,
        gpus=int(gpus) if _COUNT.fullmatch(gpus) else 0,
        revision=labels.get(LABEL_REVISION, ""),
    )


def _engine_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The launcher's configuration, which stands in the pod's own spec; empty where it cannot be read.

    It is read instead of a label or an annotation: pods of earlier versions have it too, no user's template can replace
    it, and a model's name may hold characters that labels do not allow.
    """
    spec: Mapping[str, Any] = raw.get("spec") or {}
    variables = [e for container in spec.get("containers") or () for e in container.get("env") or ()]
    text = next((e.get("value") for e in variables if e.get("name") == ENV_ENGINE_CONFIG), None)
    try:
        # Kubernetes puts one dollar in place of two.
        config = json.loads(_text(text).replace("$$", "$"))
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", config) if isinstance(config, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def pod_from_file(raw: Mapping[str, Any]) -> Pod:
    """Read one entry of a static pods file; ValueError says what is wrong with it."""
    role, address = raw.get("role"), raw.get("address")
    if role not in ENGINE_ROLES:
        raise ValueError(f"'role' is {role!r}: write one of {', '.join(ENGINE_ROLES)}")
    if not isinstance(address, str) or not address:
        raise ValueError("'address' is missing: write the host or IP address of the engine")
    port = raw.get("port", ENGINE_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ValueError(f"'port' is {port!r}: write a number from 1 to 65535")
    name = str(raw.get("name") or f"{role}-{address}-{port}")
    return Pod(
        uid=str(raw.get("uid") or name),
        name=name,
        role=str(role),
        address=address,
        fingerprint=str(raw.get("fingerprint", "")),
        ready=bool(raw.get("ready", True)),
        terminating=bool(raw.get("terminating", False)),
        port=port,
        model=_text(raw.get("model")),
        aggregated=raw.get("aggregated") is True,
    )
