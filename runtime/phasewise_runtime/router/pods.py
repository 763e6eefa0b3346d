"""An engine pod as the router knows it, read from the API server or from a file. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

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
_NOTHING: Mapping[str, Any] = {}


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
    container: str = ""
    """Id of its engine's container: another one after a restart; empty where it is not known."""
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


class Candidate(NamedTuple):
    """A usable pod as one request sees it. A tuple, since one is made of each pod for each request."""

    pod: Pod
    load: int = 0
    """Requests this router has placed there."""
    ejected: bool = False
    tried: int = 0
    """Times this request has failed there."""
    proved: bool = True
    """False: it is new, and takes no requests while others can."""
    peers: Set[str] | None = None
    """Of a decode pod: the prefill pods, by uid, whose KV it is known to get. None: all of its fingerprint."""
    failed_peers: Set[str] = frozenset()
    """Those whose KV it does not get."""

    def takes_kv_of(self, prefill: Pod) -> bool:
        return self.pod.fingerprint == prefill.fingerprint and (self.peers is None or prefill.uid in self.peers)


def pod_from_api(raw: Mapping[str, Any]) -> Pod | None:
    """Read a Pod object of the API server; None where it is no engine pod."""
    meta: Mapping[str, Any] = raw.get("metadata") or {}
    status: Mapping[str, Any] = raw.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    role = labels.get(LABEL_ROLE, "")
    if role not in ENGINE_ROLES or not meta.get("uid"):
        return None
    engine, gpus = _engine_container(raw), labels.get(LABEL_GPUS, "")
    config = _engine_config(engine)
    running = (c for c in status.get("containerStatuses") or () if c.get("name") == engine.get("name"))
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
        container=_text(next(running, _NOTHING).get("containerID")),
        revision=labels.get(LABEL_REVISION, ""),
    )


def _engine_container(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container in the pod's spec that has the launcher's configuration; empty where none has."""
    spec: Mapping[str, Any] = raw.get("spec") or {}
    return next((c for c in spec.get("containers") or () if _variable(c) is not None), _NOTHING)


def _variable(container: Mapping[str, Any]) -> object:
    return next((e.get("value") for e in container.get("env") or () if e.get("name") == ENV_ENGINE_CONFIG), None)


def _engine_config(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    """The launcher's configuration, which stands in the pod's own spec; empty where it cannot be read.

    It is read instead of a label or an annotation: pods of earlier versions have it too, no user's template can replace
    it, and a model's name may hold characters that labels do not allow.
    """
    try:
        # Kubernetes puts one dollar in place of two.
        config = json.loads(_text(_variable(engine)).replace("$$", "$"))
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
        container=_text(raw.get("container")),
    )
