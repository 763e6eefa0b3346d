"""The API server, as the operator sees it: raw dicts in and out, a deadline on every call, one gate for writes.

The only module that imports the Kubernetes client. Generated models are not used: they are slow, strict and large.
"""
# The client is not typed: what comes out of it is named where it is taken.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.config.config_exception import ConfigException

from phasewise_operator.kinds import Kind, Manifest, kind_of
from phasewise_runtime import contract

CALL_SECONDS = 10.0
PAGE = 500
_NOT_TYPED = "failed to create typed patch object"
_NAMESPACE_ENDS = "because it is being terminated"
_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"


class KubeError(Exception):
    """The API server refused or could not be reached; `status` is the HTTP status, 0 where there was no answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def invalid(self) -> bool:
        """The object itself was refused: trying the same again is of no use.

        A field that server-side apply does not know, or of the wrong type, or an entry that is there twice is answered
        with 500 (https://github.com/kubernetes/kubernetes/issues/139253).
        """
        return self.status in (400, 403, 422) or (self.status == 500 and _NOT_TYPED in self.message)

    @property
    def namespace_ends(self) -> bool:
        """Nothing can be created in a namespace that is being deleted."""
        return self.status == 403 and _NAMESPACE_ENDS in self.message

    @property
    def gone_or_conflict(self) -> bool:
        """The object was deleted, or deleted and made again: a write for the one that was read does not apply."""
        return self.status in (404, 409)


class NotLeadingError(Exception):
    """A write was asked for by an operator that does not lead (any more)."""


class Listing(NamedTuple):
    items: list[Manifest]
    version: int
    """The resourceVersion of the list: what is newer is not in it, present or not."""


class Kube:
    """`may_write` is asked before each write; what is not allowed raises NotLeadingError and sends nothing."""

    def __init__(self, api: client.ApiClient, may_write: Callable[[], bool] = lambda: True) -> None:
        self._api = api
        self._may_write = may_write

    @classmethod
    async def connect(cls) -> Kube:
        """In a pod by its service account, elsewhere by the kubeconfig; raises KubeError where there is neither."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except ConfigException:
            try:
                await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
            except ConfigException as error:
                raise KubeError(0, "NoConfig", f"neither a service account nor a kubeconfig: {error}") from error
        return cls(client.ApiClient(configuration))

    def gated(self, may_write: Callable[[], bool]) -> Kube:
        """The same connection with its writes behind a gate."""
        return Kube(self._api, may_write)

    async def close(self) -> None:
        await self._api.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        try:
            return await self.call("GET", kind.path(namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> Listing:
        """All pages. `query`: labelSelector, fieldSelector."""
        items: list[Manifest] = []
        page: dict[str, str] = {**query, "limit": str(PAGE)}
        while True:
            answer = await self.call("GET", kind.path(namespace), query=page)
            for item in answer.get("items", []):
                item.setdefault("kind", kind.name)
                item.setdefault("apiVersion", kind.api_version)
                items.append(item)
            token = answer.get("metadata", {}).get("continue")
            if not token:
                return Listing(items, int(answer.get("metadata", {}).get("resourceVersion") or 0))
            page["continue"] = token

    async def apply(self, manifest: Manifest, subresource: str | None = None) -> Manifest:
        """Server-side apply as the one field manager. Force: a field that we own is ours, whoever wrote it last."""
        meta = manifest["metadata"]
        path = kind_of(manifest).path(meta["namespace"], meta["name"], subresource)
        query = {"fieldManager": contract.FIELD_MANAGER, "force": "true"}
        return await self._write("PATCH", path, query=query, body=manifest, content_type=_APPLY)

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        query = {"fieldManager": contract.FIELD_MANAGER}
        return await self._write("POST", kind.path(namespace), query=query, body=body)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Manifest, seconds: float) -> Manifest:
        """Optimistic: the body's resourceVersion must be the stored one, else KubeError 409."""
        return await self._write("PUT", kind.path(namespace, name), body=body, seconds=seconds)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete the object with that uid, if there still is one. Its dependants go in the background."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._write("DELETE", kind.path(namespace, name), body=body)
        except KubeError as error:
            if not error.gone_or_conflict:
                raise

    async def _write(self, method: str, path: str, **kwargs: Any) -> Manifest:
        if not self._may_write():
            raise NotLeadingError(f"{method} {path}")
        return await self.call(method, path, **kwargs)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
        seconds: float = CALL_SECONDS,
    ) -> Manifest:
        """One request. Raises KubeError for any status of 400 or above and for no answer in `seconds`."""
        request = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": _JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._api.call_api(*request, _request_timeout=seconds)
            raw = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(0, type(error).__name__, str(error) or f"no answer in {seconds:g} s") from error
        data: Manifest = _decode(raw)
        if answer.status >= 400:
            raise KubeError(answer.status, str(data.get("reason", "")), str(data.get("message", raw[:200])))
        return data


def _decode(raw: bytes) -> Manifest:
    try:
        return json.loads(raw) if raw else {}
    except ValueError:
        return {}
