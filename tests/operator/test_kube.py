"""The client over real HTTP: when it sends again, when it gives up, and that it survives a renewed CA."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kubernetes.aio import client
from tests.operator.api_server import ApiServer

from phasewise_operator import connection as connection_module
from phasewise_operator import kube as kube_module
from phasewise_operator.connection import Connection, _lines, proxy_of
from phasewise_operator.kinds import DEPLOYMENT, SERVICE, Manifest
from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError, NotLeadingError

INTENT: Manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "default"}}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    fake = ApiServer()
    async with fake.serve():
        yield fake


@pytest.fixture
async def kube(server: ApiServer) -> AsyncIterator[Kube]:
    kube = Kube(Connection(client.Configuration(host=server.url)))
    yield kube
    await kube.close()


async def test_what_was_written_is_read_back(server: ApiServer, kube: Kube) -> None:
    applied = await kube.apply({**INTENT, "spec": {"clusterIP": "None"}})
    assert await kube.get(SERVICE, "default", "a") == applied
    assert "fieldManager=phasewise" in server.requests[0]
    assert [m["metadata"]["name"] for m in (await kube.list(SERVICE, None)).items] == ["a"]
    await kube.delete(SERVICE, "default", "a", "a")
    assert await kube.get(SERVICE, "default", "a") is None


async def test_a_request_that_the_server_asks_to_send_later_is_sent_again(server: ApiServer, kube: Kube) -> None:
    server.retry_after.extend(["1"])
    began = asyncio.get_running_loop().time()
    await kube.apply(INTENT)
    assert asyncio.get_running_loop().time() - began >= 1
    assert len(server.requests) == 2


async def test_a_pause_beyond_the_deadline_is_an_error_at_once(server: ApiServer, kube: Kube) -> None:
    server.retry_after.extend(["60"])
    with pytest.raises(KubeError, match="429"):
        await kube.apply(INTENT)
    assert len(server.requests) == 1


async def test_what_is_sent_again_has_only_the_time_that_is_left_here_and_on_the_server(
    server: ApiServer, kube: Kube
) -> None:
    server.retry_after.extend(["1"])
    await kube.apply(INTENT)
    first, again = (int(request.partition("timeout=")[2].partition("ms")[0]) for request in server.requests)
    assert first == 10_000
    assert again <= 9_000


async def test_a_pause_that_took_too_long_is_an_error_and_no_request_without_a_deadline(
    server: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(seconds: float) -> None:  # as on a machine with too much to do
        time.sleep(seconds + 1)  # noqa: ASYNC251

    server.retry_after.extend(["1"])
    monkeypatch.setattr(kube_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    with pytest.raises(KubeError, match="429"):
        await kube.call("GET", SERVICE.path("default"), seconds=1.5)
    assert len(server.requests) == 1


async def test_a_write_is_not_sent_again_after_the_lease_was_lost(server: ApiServer, kube: Kube) -> None:
    seconds = iter([15.0, 0.0])
    server.retry_after.extend(["1", "1"])
    with pytest.raises(NotLeadingError):
        await kube.gated(lambda: next(seconds)).apply(INTENT)
    assert len(server.requests) == 1


async def test_writes_at_a_time_are_bounded_and_the_gate_is_asked_when_their_turn_comes(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_module, "WRITES", 2)
    kube = Kube(Connection(client.Configuration(host=server.url)))
    seconds = 15.0
    gated = kube.gated(lambda: seconds)
    await asyncio.gather(kube._at_once.acquire(), kube._at_once.acquire())
    write = asyncio.create_task(gated.apply(INTENT))
    await kube.list(SERVICE, None)
    assert server.count("PATCH") == 0
    seconds = 0.0
    kube._at_once.release()
    with pytest.raises(NotLeadingError):
        await write
    await kube.close()


async def test_an_answer_that_is_no_list_is_an_error_and_not_an_empty_list() -> None:
    """As a proxy in between may give it: an empty list would mean that everything was deleted."""
    body = iter([b"<html>welcome</html>", b'{"kind": "Status"}', b"[]", b""])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=next(body))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kube = Kube(Connection(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")))
    for _ in range(4):
        with pytest.raises(KubeError, match=r"no JSON|no list"):
            await kube.list(DEPLOYMENT, None)
    await kube.close()
    await runner.cleanup()


class Authority:
    """A CA, and a server certificate from it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.key, self.name = ec.generate_private_key(ec.SECP256R1()), name
        ca = self._certificate(name, self.key, is_ca=True)
        self.pem = ca.public_bytes(serialization.Encoding.PEM)
        server_key = ec.generate_private_key(ec.SECP256R1())
        chain = self._certificate("127.0.0.1", server_key, is_ca=False).public_bytes(serialization.Encoding.PEM)
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path = folder / f"{name}.pem"
        path.write_bytes(server_key.private_bytes(*pem) + chain)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(path)

    def _certificate(self, name: str, key: ec.EllipticCurvePrivateKey, *, is_ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if is_ca:
            use = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
            more = dict.fromkeys(("encipher_only", "decipher_only"), False)
            usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **use, **more)
            builder = builder.add_extension(usage, critical=True)
        else:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())


async def test_a_renewed_ca_is_read_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "RENEW_SECONDS", 0.0)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "a"}})

    async def serve(authority: Authority, port: int) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=authority.context, reuse_address=True).start()
        return runner

    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(old.pem)
    runner = await serve(old, 0)
    port = runner.addresses[0][1]
    kube = Kube(Connection(client.Configuration(host=f"https://127.0.0.1:{port}", ssl_ca_cert=str(ca_file))))
    assert await kube.get(SERVICE, "default", "a")
    await runner.cleanup()
    runner = await serve(new, port)
    with pytest.raises(KubeError, match="Certificate"):
        await kube.get(SERVICE, "default", "a")
    ca_file.write_bytes(new.pem)  # as the kubelet renews the mounted one
    assert await kube.get(SERVICE, "default", "a")
    await kube.close()
    await runner.cleanup()


def test_the_proxy_of_the_environment_is_used_unless_it_is_bypassed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "10.96.0.1,.svc")
    assert proxy_of("https://cluster.example:6443") == "http://proxy:3128"
    assert proxy_of("https://10.96.0.1:443") is None
    monkeypatch.delenv("HTTPS_PROXY")
    assert proxy_of("https://cluster.example:6443") is None


async def test_lines_of_a_stream_come_complete_however_they_are_cut() -> None:
    for size in (1, 2, 3, 7, 100):
        text = b'{"a": 1}\n\n{"b": 22}\n{"c": 3}\n'

        class Content:
            async def iter_any(self, text: bytes = text, size: int = size) -> AsyncIterator[bytes]:
                for start in range(0, len(text), size):
                    yield text[start : start + size]

        assert [line async for line in _lines(Content())] == [b'{"a": 1}', b'{"b": 22}', b'{"c": 3}']  # type: ignore[arg-type]


async def test_a_line_without_an_end_is_not_collected_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_LINE", 100)

    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 30

    with pytest.raises(Exception, match="longer than 100 bytes"):
        _ = [line async for line in _lines(Content())]  # type: ignore[arg-type]
