"""A small API server over real HTTP: lists in pages, watches with bookmarks and 410, writes, and faults on demand.

For tests of the operator's client and reflectors, and for `bench/watch.py`, which runs the operator against it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiohttp import web

from phasewise_operator.kinds import BY_NAME, EVENT, LEASE, NODE, POD, Kind, Manifest

KINDS = {kind.plural: kind for kind in (*BY_NAME.values(), EVENT, LEASE, NODE)}
Ref = tuple[str, str, str]
"""Plural, namespace, name."""


class Event(NamedTuple):
    version: int
    type: str
    plural: str
    namespace: str
    raw: bytes
    """The object, or that of a bookmark, as JSON."""


@dataclass
class ApiServer:
    objects: dict[Ref, bytes] = field(default_factory=dict[Ref, bytes])
    version: int = 100
    oldest: int = 0
    """Watches from before this version are answered 410."""
    refused: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """HTTP status of lists and watches, by plural and namespace ("" for all namespaces)."""
    retry_after: deque[str] = field(default_factory=deque[str])
    """Each makes one request end in 429 with this Retry-After."""
    expire_pages: int = 0
    """So many pages after the first are answered with 410."""
    requests: list[str] = field(default_factory=list[str])
    """Method, path and query of each, in the order of their coming."""
    calls: Counter[str] = field(default_factory=Counter[str])
    url: str = ""
    silent: bool = False
    """Watches say nothing any more, and are not closed."""
    lease: Manifest | None = None
    log: deque[Event] = field(default_factory=lambda: deque[Event](maxlen=50_000))
    streams: set[asyncio.Queue[Event | None]] = field(default_factory=set[asyncio.Queue[Event | None]])
    on_page: Callable[[str], None] = lambda _: None
    """Is called before each page of a list with its plural."""

    def put(self, plural: str, manifest: Manifest) -> Manifest:
        """Store an object with the next version, and show it to the watches."""
        meta = manifest["metadata"]
        self.version += 1
        meta = {"namespace": "default", "uid": meta["name"], **meta, "resourceVersion": str(self.version)}
        stored = {**manifest, "metadata": meta}
        ref = (plural, meta["namespace"], meta["name"])
        kind = "MODIFIED" if ref in self.objects else "ADDED"
        self.objects[ref] = json.dumps(stored).encode()
        self._show(Event(self.version, kind, plural, meta["namespace"], self.objects[ref]))
        return stored

    def put_raw(self, plural: str, namespace: str, items: Iterable[tuple[str, bytes]]) -> None:
        """Many objects at once, as they are; no watch sees it."""
        self.objects.update({(plural, namespace, name): raw for name, raw in items})

    def delete(self, plural: str, name: str, namespace: str = "default", *, unseen: bool = False) -> None:
        stored = json.loads(self.objects.pop((plural, namespace, name)))
        self.version += 1
        stored["metadata"]["resourceVersion"] = str(self.version)
        if not unseen:
            self._show(Event(self.version, "DELETED", plural, namespace, json.dumps(stored).encode()))

    def bookmark(self, plural: str) -> None:
        self.version += 1
        head = {"kind": KINDS[plural].name, "metadata": {"resourceVersion": str(self.version)}}
        self._show(Event(self.version, "BOOKMARK", plural, "", json.dumps(head).encode()))

    def expire(self, plural: str) -> None:
        """The 410 that a watch shows in its stream."""
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        self._show(Event(self.version, "ERROR", plural, "", json.dumps(status).encode()))

    def cut(self) -> None:
        """Every watch's connection breaks off."""
        for stream in self.streams:
            stream.put_nowait(None)

    def count(self, word: str) -> int:
        """Requests whose method, path or query has this word in it."""
        return sum(word in request for request in self.requests)

    def _show(self, event: Event) -> None:
        if event.type not in ("ERROR", "BOOKMARK"):
            self.log.append(event)
        for stream in self.streams:
            stream.put_nowait(event)

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncGenerator[str]:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            self.cut()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        self.calls[request.method] += 1
        if self.retry_after:
            return _status(429, "TooManyRequests", {"Retry-After": self.retry_after.popleft()})
        namespace, plural, name = _split(request.path)
        if plural == LEASE.plural:
            return await self._answer_lease(request)
        if plural not in KINDS:
            return _discovery(request.path)
        refusal = self.refused.get((plural, namespace))
        if refusal:
            return _status(refusal, "Forbidden" if refusal == 403 else "NotFound")
        if request.method == "GET" and not name:
            if request.query.get("watch"):
                return await self._watch(request, plural, namespace)
            return self._list(request, plural, namespace)
        return await self._answer_object(request, plural, namespace, name)

    async def _answer_object(self, request: web.Request, plural: str, namespace: str, name: str) -> web.Response:
        ref = (plural, namespace, name)
        if request.method in ("POST", "PATCH"):
            body = await request.json()
            old = json.loads(self.objects.get(ref, b"{}"))
            return web.json_response(self.put(plural, {**old, **body, "metadata": body["metadata"]}))
        if ref not in self.objects:
            return _status(404, "NotFound")
        if request.method == "DELETE":
            self.delete(plural, name, namespace)
            return web.json_response({"kind": "Status"})
        return web.Response(body=self.objects[ref], content_type="application/json")

    async def _answer_lease(self, request: web.Request) -> web.Response:
        if request.method in ("POST", "PUT"):
            self.version += 1
            lease: Manifest = await request.json()
            lease["metadata"]["resourceVersion"] = str(self.version)
            self.lease = lease
        return web.json_response(self.lease) if self.lease else _status(404, "NotFound")

    def _list(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        self.on_page(plural)
        first, version = (int(n) for n in request.query.get("continue", f"0.{self.version}").split("."))
        if first and self.expire_pages:
            self.expire_pages -= 1
            return _status(410, "Expired")
        refs = [ref for ref in self.objects if ref[0] == plural and namespace in ("", ref[1])]
        last = first + int(request.query.get("limit", len(refs)) or 1)
        meta = {"resourceVersion": str(version)}
        if last < len(refs):
            meta["continue"] = f"{last}.{version}"
        head = json.dumps({"kind": KINDS[plural].name + "List", "metadata": meta})[:-1]
        items = b",".join(self.objects[ref] for ref in refs[first:last])
        return web.Response(body=head.encode() + b',"items":[' + items + b"]}", content_type="application/json")

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion", 0))
        if since < self.oldest:
            return _status(410, "Expired")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        stream: asyncio.Queue[Event | None] = asyncio.Queue()
        for event in self.log:
            if event.version > since:
                stream.put_nowait(event)
        self.streams.add(stream)
        try:
            await response.prepare(request)
            while (event := await stream.get()) is not None:
                here = event.plural == plural and (not event.namespace or namespace in ("", event.namespace))
                if here and not self.silent:
                    await response.write(b'{"type":"%s","object":%s}\n' % (event.type.encode(), event.raw))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.streams.discard(stream)
        if request.transport is not None:
            request.transport.close()
        return response


def _split(path: str) -> tuple[str, str, str]:
    """Namespace, plural and name, each empty where there is none."""
    parts = path.strip("/").split("/")[2 if path.startswith("/api/") else 3 :]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    return namespace, parts[0] if parts else "", parts[1] if len(parts) > 1 else ""


def _status(code: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return web.json_response(body, status=code, headers=headers)


def _resource(kind: Kind) -> Manifest:
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    return {"name": kind.plural, "singularName": "", "kind": kind.name, "namespaced": True, "verbs": verbs}


def _discovery(path: str) -> web.Response:
    groups = {kind.group: kind for kind in KINDS.values() if kind.group}
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "37"},
        "/api": {"versions": ["v1"]},
        "/apis": {
            "groups": [
                {"name": g, "versions": [{"version": k.version}], "preferredVersion": {"version": k.version}}
                for g, k in groups.items()
            ]
        },
    }
    for kind in KINDS.values():
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        found = [_resource(k) for k in KINDS.values() if k.api_version == kind.api_version]
        answers[root] = {"groupVersion": kind.api_version, "resources": found}
    namespaces = {**_resource(POD), "name": "namespaces", "kind": "Namespace", "namespaced": False}
    answers["/api/v1"]["resources"].append(namespaces)
    return web.json_response(answers[path]) if path in answers else _status(404, "NotFound")


def kubeconfig(url: str) -> str:
    """For a process that is to use this server."""
    cluster, context = {"server": url}, {"cluster": "c", "user": "u"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": context}],
        }
    )
