"""An engine pod as the router knows it, read from the API server or from a file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phasewise_runtime.contract import ENGINE_PORT, ENGINE_ROLES, LABEL_FINGERPRINT, LABEL_ROLE


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


def pod_from_api(raw: Mapping[str, Any]) -> Pod | None:
    """Read a Pod object of the API server; None where it is no engine pod."""
    meta: Mapping[str, Any] = raw.get("metadata") or {}
    status: Mapping[str, Any] = raw.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    role = labels.get(LABEL_ROLE, "")
    if role not in ENGINE_ROLES or not meta.get("uid"):
        return None
    return Pod(
        uid=str(meta["uid"]),
        name=str(meta.get("name", "")),
        role=role,
        address=str(status.get("podIP") or ""),
        fingerprint=labels.get(LABEL_FINGERPRINT, ""),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ()),
        terminating=bool(meta.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
    )


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
    )
