"""The API server, as the operator sees it: raw dicts in and out, a deadline on every call, one gate for writes. I/O.

Generated models are not used: they are slow, strict and large.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, NamedTuple, NoReturn, cast

import aiohttp
from pydantic_core import from_json

from phasewise_operator.connection import Connection, NoConfigError
from phasewise_operator.kinds import Kind, Manifest, kind_of
from phasewise_runtime import contract

CALL_SECONDS = 10.0
PAGE = 100
"""Objects of a page: of pods with 15 KB each some 1.5 MB, which take some 20 ms to decode."""
WRITES = 32
"""Requests that change something, at a time: more of them only wait in the API server's queues."""
_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)


class KubeError(Exception):
    """The API server refused or could not be reached; `status` is the HTTP status, 0 where there was no answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def invalid(self) -> bool:
        """The object itself was refused: trying the same again is of no use."""
        return self.status in (400, 403, 422)

    @property
    def gone_or_conflict(self) -> bool:
        """The object was deleted, or deleted and made again: a write for the one that was read does not apply."""
        return self.status in (404, 409)


class NotLeadingError(Exception):
    """A write was asked for by an operator that does not lead (any more)."""


class ExpiredError(KubeError):
    """410: the version from which a list or a watch was to go on is forgotten. List again."""


class SilentError(KubeError):
    """A watch said nothing for so long that its connection may be dead. It can go on where it was."""


class Listing(NamedTuple):
    items: list[Manifest]
    version: int
    """The resourceVersion of the list: what is newer is not in it, present or not."""


class WatchEvent(NamedTuple):
    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    object: Manifest


class Kube:
    """`may_write` is asked before each write; what is not allowed raises NotLeadingError and sends nothing."""

    def __init__(
        self,
        connection: Connection,
        may_write: Callable[[], bool] = lambda: True,
        writes: asyncio.Semaphore | None = None,
    ) -> None:
        self._connection = connection
        self._may_write = may_write
        self._writes = writes or asyncio.Semaphore(WRITES)

    @classmethod
    async def connect(cls) -> Kube:
        """In a pod by its service account, elsewhere by the kubeconfig; raises KubeError where there is neither."""
        try:
            return cls(await Connection.open())
        except NoConfigError as error:
            raise KubeError(0, "NoConfig", str(error)) from error

    def gated(self, may_write: Callable[[], bool]) -> Kube:
        """The same connection with its writes behind a gate."""
        return Kube(self._connection, may_write, self._writes)

    async def close(self) -> None:
        await self._connection.close()

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
        version = 0
        async for page in self.pages(kind, namespace, PAGE, **query):
            items += page.items
            version = page.version
        return Listing(items, version)

    async def list_metadata(self, kind: Kind, namespace: str | None, limit: int = 0) -> Listing:
        """Objects with their metadata alone. `limit`: only so many."""
        query = {"limit": str(limit)} if limit else {}
        return _listing(kind, await self._call("GET", kind.path(namespace), query=query, accept=_METADATA))

    async def pages(self, kind: Kind, namespace: str | None, limit: int, **query: str) -> AsyncGenerator[Listing, None]:
        """A list page by page, all of one version. Raises ExpiredError where that version is forgotten meanwhile."""
        page: dict[str, str] = {**query, "limit": str(limit)}
        while True:
            answer = await self._call("GET", kind.path(namespace), query=page)
            token = answer.get("metadata", {}).get("continue")
            listing = _listing(kind, answer)
            del answer  # so that a page is gone before the next one comes
            yield listing
            del listing
            if not token:
                return
            page["continue"] = token

    async def watch(
        self, kind: Kind, namespace: str | None, version: str, seconds: float, silent_seconds: float, **query: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events after `version`; the API server ends it after `seconds`.

        Raises ExpiredError, SilentError where nothing came for `silent_seconds`, in which a bookmark should have come,
        and KubeError, also for a stream that is cut.
        """
        query |= {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        query["timeoutSeconds"] = str(int(seconds))
        path = kind.path(namespace)
        try:
            async with self._connection.stream(path, query, {"Accept": _JSON}, silent_seconds) as (status, lines):
                if status >= 400:
                    _raise(status, b"".join([line async for line in lines]))
                async for line in lines:
                    yield _event(line)
        except aiohttp.SocketTimeoutError as error:
            raise SilentError(0, "SilentStream", f"nothing came for {silent_seconds:g} s") from error
        except _NO_ANSWER as error:
            raise KubeError(0, type(error).__name__, str(error) or "no answer") from error

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
        async with self._writes:
            return await self._call(method, path, may_send=self._may_write, **kwargs)

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
        return await self._call(method, path, query=query, body=body, content_type=content_type, seconds=seconds)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        seconds: float = CALL_SECONDS,
        may_send: Callable[[], bool] = lambda: True,
    ) -> Manifest:
        """Sends again, within `seconds`, what the API server asks to send later by Retry-After (429, 503)."""
        clock = asyncio.get_running_loop().time
        headers = {"Accept": accept, "Content-Type": content_type}
        raw = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        until = clock() + seconds
        while True:
            if not may_send():
                raise NotLeadingError(f"{method} {path}")
            try:
                answer = await self._connection.request(method, path, query or {}, headers, raw, until - clock())
            except _NO_ANSWER as error:
                raise KubeError(0, type(error).__name__, str(error) or f"no answer in {seconds:g} s") from error
            if answer.status < 400:
                return _decode(answer.body)
            if not answer.retry_after or clock() + answer.retry_after >= until:
                _raise(answer.status, answer.body)
            await asyncio.sleep(answer.retry_after)


def _listing(kind: Kind, answer: Manifest) -> Listing:
    items: list[Manifest] = answer.get("items") or []
    for item in items:
        item["kind"], item["apiVersion"] = kind.name, kind.api_version
    try:
        return Listing(items, int(answer["metadata"]["resourceVersion"]))
    except (KeyError, ValueError) as error:
        raise KubeError(0, "NoList", f"the answer for {kind.plural} is no list of Kubernetes objects") from error


def _event(line: bytes) -> WatchEvent:
    event = _decode(line)
    found: Manifest = event.get("object") or {}
    if event.get("type") == "ERROR":
        _raise(int(found.get("code", 0)), line, found)
    return WatchEvent(str(event.get("type")), found)


def _raise(status: int, raw: bytes, body: Manifest | None = None) -> NoReturn:
    try:
        data = _decode(raw) if body is None else body
    except KubeError:
        data = {}
    error = ExpiredError if status == 410 else KubeError
    raise error(status, str(data.get("reason", "")), str(data.get("message", raw[:200])))


def _decode(raw: bytes) -> Manifest:
    """Equal strings are one object, as far as the parser's cache goes: labels, images, names of fields."""
    try:
        data: Any = from_json(raw) if raw else {}
    except ValueError as error:
        raise KubeError(0, "NoJson", f"the answer is no JSON: {raw[:100]!r}") from error
    if not isinstance(data, dict):
        raise KubeError(0, "NoJson", f"the answer is no JSON object: {raw[:100]!r}")
    return cast("Manifest", data)
