"""The few questions that the cluster asks its own API server, over the machine's loopback."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 5.0


@dataclass(frozen=True)
class Api:
    port: int
    pki: Path

    def get(self, path: str) -> Any:
        """The answer, from JSON; None where there is none, whatever the reason."""
        try:
            status, body = self._request(path)
            return json.loads(body) if status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None

    def ready(self) -> bool:
        try:
            return self._request("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def node_ready(self, name: str) -> bool:
        return condition(self.get(f"/api/v1/nodes/{name}"), "Ready")

    def deployment_available(self, namespace: str, name: str) -> bool:
        deployment = self.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
        return condition(deployment, "Available")

    def _request(self, path: str) -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=context)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def condition(thing: Any, kind: str) -> bool:
    """Whether an object's status has a condition of this kind that is true."""
    conditions = ((thing or {}).get("status") or {}).get("conditions") or []
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)
