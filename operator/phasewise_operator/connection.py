"""The HTTP connection to the API server: where it is, who we are, TLS, one session, streams by lines. I/O.

The only module that imports the Kubernetes client. It reads the configuration and renews tokens; requests do not go
through it, since its call path costs more than the request: it copies each body, and looks for a netrc file each time.
"""
# The client is not typed: what comes out of it is named where it is taken.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
import math
import os
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from yarl import URL

log = logging.getLogger(__name__)
RENEW_SECONDS = 5.0
"""The least time between two readings of the certificates."""
CONNECT_SECONDS = 5.0
MAX_LINE = 8 * 1024 * 1024
"""Bytes of a watch event; etcd keeps no object of more than 1.5 MiB."""


class NoConfigError(Exception):
    """There is neither a service account nor a kubeconfig."""


class Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: float
    """Seconds, as the API server asks for by Retry-After; 0: it does not."""


class Connection:
    def __init__(self, configuration: client.Configuration) -> None:
        self._configuration = configuration
        self._session: aiohttp.ClientSession | None = None
        self._replaced: list[aiohttp.ClientSession] = []
        """Sessions with older certificates: their requests go on to their end."""
        self._opened = -math.inf
        self._proxy: str | None = None

    @classmethod
    async def open(cls) -> Connection:
        """In a pod by its service account, elsewhere by the kubeconfig. Raises NoConfigError."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except ConfigException:
            try:
                await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
            except ConfigException as error:
                raise NoConfigError(f"neither a service account nor a kubeconfig: {error}") from error
        return cls(configuration)

    async def close(self) -> None:
        sessions = [*self._replaced, *([self._session] if self._session else [])]
        await asyncio.gather(*(session.close() for session in sessions))

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        seconds: float,
    ) -> Answer:
        """Raises aiohttp.ClientError, TimeoutError or OSError where no whole answer came in `seconds`."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._send(method, path, query, headers, timeout, body) as response:
            raw = await response.read()
            return Answer(response.status, raw, _seconds(response.headers.get("Retry-After", "")))

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], silent_seconds: float
    ) -> AsyncGenerator[tuple[int, AsyncIterator[bytes]], None]:
        """HTTP status and lines of an answer that goes on. TimeoutError: nothing came for `silent_seconds`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silent_seconds)
        async with self._send("GET", path, query, headers, timeout) as response:
            yield response.status, _lines(response.content)

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: bytes | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        session = self._session or self._open_session()
        url = URL(self._configuration.host + path + (f"?{urlencode(query)}" if query else ""), encoded=True)
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        # Compression costs both sides more than the network of a cluster does.
        own = {"Accept-Encoding": "identity", **({"Authorization": token} if token else {})}
        try:
            async with session.request(
                method,
                url,
                data=body,
                headers={**headers, **own},
                timeout=timeout,
                proxy=self._proxy,
                server_hostname=self._configuration.tls_server_name or None,
            ) as response:
                yield response
        except aiohttp.ClientSSLError as error:
            self._renew(error)
            raise

    def _renew(self, error: aiohttp.ClientSSLError) -> None:
        """The cluster's CA or our certificate may have been renewed: the next request reads them anew."""
        if self._session is not None and asyncio.get_running_loop().time() - self._opened >= RENEW_SECONDS:
            log.warning("TLS to the API server: %s; reading the certificates again", error)
            self._replaced.append(self._session)
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        configuration = self._configuration
        # The client's own transport knows how a configuration becomes a TLS context. It opens nothing by itself.
        context = RESTClientObject(configuration).ssl_context
        self._proxy = configuration.proxy or proxy_of(configuration.host)
        connector = aiohttp.TCPConnector(limit=configuration.connection_pool_maxsize, ssl=context)
        # trust_env would read the netrc file and the proxies of the environment for each request.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        self._opened = asyncio.get_running_loop().time()
        return self._session


def proxy_of(host: str) -> str | None:
    """The proxy that the environment names for a URL (HTTPS_PROXY, NO_PROXY)."""
    parts = urlsplit(host)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _seconds(retry_after: str) -> float:
    """Of Retry-After the API server uses only the form with seconds."""
    return float(retry_after) if retry_after.isdecimal() else 0.0


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines up to MAX_LINE; the reader's own readline stops at its buffer's size."""
    parts: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        for following in rest:
            if size:
                yield b"".join(parts)
            parts, size = [following], len(following)
        if size > MAX_LINE:
            raise aiohttp.ClientPayloadError(f"a watch event is longer than {MAX_LINE} bytes")
    if size:
        yield b"".join(parts)
