"""The forwarder passes all bytes both ways, and ends each direction by itself."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2e.cluster import forward
from e2e.cluster.forward import Forward, Forwarder

MEGABYTE = os.urandom(1024 * 1024)
SECONDS = 10


@pytest.fixture
async def forwarder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Forwarder]:
    """In one network namespace: stepping between two needs root."""
    monkeypatch.setattr(forward, "enter_network", lambda namespace: None)
    made = Forwarder(0, 0, tmp_path / "forwards.json")
    yield made
    for name in list(made.forwards):
        await made.remove(name)


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """Answers only when its client has said all: what comes back shows that half-closing works."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def to(port: int, local: int = 0, name: str = "test") -> Forward:
    return {"name": name, "local": local, "host": "127.0.0.1", "port": port}


async def ask(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), SECONDS)
    finally:
        writer.close()


async def test_many_large_answers_come_back_complete(forwarder: Forwarder, echo: int) -> None:
    opened = await forwarder.add(to(echo))
    answers = await asyncio.gather(*(ask(opened["local"], MEGABYTE) for _ in range(20)))
    assert all(answer == MEGABYTE for answer in answers)


async def test_an_answer_streams_while_the_request_goes_on(forwarder: Forwarder) -> None:
    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(repeat, "127.0.0.1", 0) as server:
        opened = await forwarder.add(to(server.sockets[0].getsockname()[1]))
        reader, writer = await asyncio.open_connection("127.0.0.1", opened["local"])
        for line in (b"one\n", b"two\n"):
            writer.write(line)
            assert await asyncio.wait_for(reader.readline(), SECONDS) == line
        writer.close()


async def test_a_client_that_leaves_is_noticed_by_the_target(forwarder: Forwarder) -> None:
    left = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        opened = await forwarder.add(to(server.sockets[0].getsockname()[1]))
        _, writer = await asyncio.open_connection("127.0.0.1", opened["local"])
        writer.close()
        await asyncio.wait_for(left.wait(), SECONDS)


async def test_a_target_that_is_not_there_ends_the_connection(forwarder: Forwarder) -> None:
    opened = await forwarder.add(to(free_port()))
    reader, writer = await asyncio.open_connection("127.0.0.1", opened["local"])
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()


async def test_the_same_forward_keeps_its_port_when_its_target_moves(forwarder: Forwarder, echo: int) -> None:
    first = await forwarder.add(to(free_port()))
    assert await forwarder.add(to(first["port"])) == first
    second = await forwarder.add(to(echo))
    assert second["local"] == first["local"]
    assert await ask(second["local"], b"hello") == b"hello"


async def test_a_port_that_is_taken_is_an_error(forwarder: Forwarder, echo: int) -> None:
    with pytest.raises(OSError, match="in use"):
        await forwarder.add(to(echo, local=echo))
    assert forwarder.forwards == {}


async def test_a_removed_forward_no_longer_listens(forwarder: Forwarder, echo: int) -> None:
    opened = await forwarder.add(to(echo))
    await forwarder.remove("test")
    with pytest.raises(ConnectionRefusedError):
        await ask(opened["local"], b"hello")


async def test_forwards_come_back_after_a_restart(forwarder: Forwarder, echo: int) -> None:
    opened = await forwarder.add(to(echo))
    await forwarder.add(to(echo, name="gone"))
    await forwarder.remove("gone")
    for server in forwarder.servers.values():
        server.close()
    restarted = Forwarder(0, 0, forwarder.kept)
    await restarted.restore()
    assert list(restarted.forwards.values()) == [opened]
    assert await ask(opened["local"], b"hello") == b"hello"
    await restarted.remove("test")
