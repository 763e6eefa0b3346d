"""The API server, as the operator sees it: raw dicts in and out, a deadline on every call, one gate for writes. I/O.

Generated models are not used: they are slow, strict and large.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, NamedTuple, NoReturn, cast

import aiohttp
from pydantic_core import from_json

from phasewise_operator.connection import Connection, NoConfigError
from phasewise_operator.kinds import Kind, Manifest, kind_of
from phasewise_operator.kube_errors import ExpiredError, KubeError, NotLeadingError, SilentError
from phasewise_runtime import contract

CALL_SECONDS = 10.0
PAGE = 100
"""Objects of a page: of pods with 15 KB each some 1.5 MB, which take some 20 ms to decode."""
WRITES = 32
"""Requests that change something, at a time: more of them only wait in the API server's queues."""
LEAST_WRITE_SECONDS = 0.1
"""A write with less time left is not begun: it would end without an answer."""
_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)


class Listing(NamedTuple):
    items: list[Manifest]
    version: int
    """The resourceVersion of the list: what is newer is not in it, present or not."""


class WatchEvent(NamedTuple):
    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    object: Manifest


class Kube:
    """`seconds_to_write` is asked before each write: within so many seconds it must have ended, on the API server too.
    Where none are left, the write raises NotLeadingError and sends nothing."""

    def __init__(
        self,
        connection: Connection,
        seconds_to_write: Callable[[], float] = lambda: math.inf,
        at_once: asyncio.Semaphore | None = None,
    ) -> None:
        self._connection = connection
        self._seconds_to_write = seconds_to_write
        self._at_once = at_once or asyncio.Semaphore(WRITES)
        self._writes: set[asyncio.Task[Manifest]] = set()

    @classmethod
    async def connect(cls) -> Kube:
        """In a pod by its service account, elsewhere by the kubeconfig; raises KubeError where there is neither."""
        try:
            return cls(await Connection.open())
        except NoConfigError as error:
            raise KubeError(0, "NoConfig", str(error)) from error

    def gated(self, seconds_to_write: Callable[[], float]) -> Kube:
        """The same connection with its writes behind a gate."""
        return Kube(self._connection, seconds_to_write, self._at_once)

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
        return _listing(kind, await self.call("GET", kind.path(namespace), query=query, accept=_METADATA))

    async def pages(self, kind: Kind, namespace: str | None, limit: int, **query: str) -> AsyncGenerator[Listing, None]:
        """A list page by page, all of one version. Raises ExpiredError where that version is forgotten meanwhile."""
        page: dict[str, str] = {**query, "limit": str(limit)}
        while True:
            answer = await self.call("GET", kind.path(namespace), query=page)
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
        """Events after `version`; the API server ends it after `seconds`. Raises ExpiredError, SilentError where
        nothing came for `silent_seconds`, in which a bookmark should have come, and KubeError, also where it is cut.
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
        """Server-side apply as the one field manager. Force: a field that we own is ours, even if another wrote it."""
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

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        """Delete the object with that uid, if there still is one. Its dependants go in the background. Returns whether
        it has gone, or is about to."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._write("DELETE", kind.path(namespace, name), body=body)
        except KubeError as error:
            if not error.gone_or_conflict:
                raise
            return error.status == 404
        return True

    async def _write(self, method: str, path: str, **kwargs: Any) -> Manifest:
        """A write that has begun goes on where its caller is cancelled: nobody could say whether it was carried out."""
        await self._at_once.acquire()
        task = asyncio.create_task(self.call(method, path, may_take=self._may_take, **kwargs))
        self._writes.add(task)
        task.add_done_callback(self._end_write)
        return await asyncio.shield(task)

    def _may_take(self) -> float:
        left = self._seconds_to_write()
        return left if left >= LEAST_WRITE_SECONDS else 0.0

    def _end_write(self, task: asyncio.Task[Manifest]) -> None:
        self._at_once.release()
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # of a write whose caller was cancelled nobody else asks for it

    async def finish_writes(self) -> None:
        """Returns when no write is in flight: after CALL_SECONDS at the latest, if none begins meanwhile."""
        if self._writes:
            await asyncio.wait(set(self._writes))

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        seconds: float = CALL_SECONDS,
        may_take: Callable[[], float] | None = None,
    ) -> Manifest:
        """One request. Raises KubeError for any status of 400 or above and for no answer in `seconds`.

        Sends again, within `seconds`, what the API server asks to send later by Retry-After (429, 503).

        `may_take`: of a write, asked each time that it is sent: within so many seconds it must have ended.
        """
        clock = asyncio.get_running_loop().time
        headers = {"Accept": accept, "Content-Type": content_type}
        raw = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        until = clock() + seconds
        while True:
            left, sent = until - clock(), query or {}
            if may_take:
                if not (allowed := may_take()):
                    raise NotLeadingError(f"{method} {path}")
                left = min(left, allowed)
                sent = {**sent, "timeout": f"{math.ceil(left * 1000)}ms"}  # the API server drops what takes longer
            try:
                answer = await self._connection.request(method, path, sent, headers, raw, left)
            except _NO_ANSWER as error:
                raise KubeError(0, type(error).__name__, str(error) or f"no answer in {left:.3g} s") from error
            if answer.status < 400:
                return _decode(answer.body)
            if not answer.retry_after or clock() + answer.retry_after >= until:
                _raise(answer.status, answer.body)
            await asyncio.sleep(answer.retry_after)
            if clock() >= until:  # slept too long, on a busy machine; to the client 0 s are no limit
                _raise(answer.status, answer.body)


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
