"""The forwarder: listens on the machine's loopback and connects inside the node, which has no other way in or out.

Run by local.py as a process of the node (`python -m e2e.cluster.forward NETWORK_NAMESPACE SOCKET FILE`). A socket
belongs to the network namespace in which it is made: the process lives in the node's, and steps out only to make a
listener. Other processes ask for forwards over a unix socket, with the functions at the end of this file; the forwards
are kept in FILE for a restart.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, cast

from e2e.cluster.settings import ClusterError

CLONE_NEWNET = 0x40000000
CONNECT_SECONDS = 10.0
CONTROL_SECONDS = 10.0


class Forward(TypedDict):
    """From `local` on the machine's loopback (0: any free port) to host:port inside the node."""

    name: str
    local: int
    host: str
    port: int


def enter_network(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def reset(transport: asyncio.Transport) -> None:
    """End a connection so that the other end sees a failure, not the end of what was said."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Pipe(asyncio.Protocol):
    """One side of a connection: passes bytes on to the other side, no faster than that takes them."""

    def __init__(self, peer: Pipe | None = None) -> None:
        self.peer: Pipe | None = peer
        self.transport: asyncio.Transport | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        if self.peer and self.peer.transport:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        """A side that has said all may still be answered: only when both have is the connection over."""
        self.ended = True
        if self.peer is None or self.peer.transport is None or self.peer.ended:
            return False
        if self.peer.transport.can_write_eof() and not self.peer.transport.is_closing():
            self.peer.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        peer, self.peer = self.peer, None
        if peer and peer.transport:
            peer.peer = None
            if exc:
                reset(peer.transport)
            else:
                peer.transport.close()

    def pause_writing(self) -> None:
        if self.peer and self.peer.transport:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer and self.peer.transport:
            self.peer.transport.resume_reading()


class Accepted(Pipe):
    """The side of the machine: bytes that come before the target is reached are kept for it."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.forward = forward
        self.early = b""
        self.connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self.peer is None and self.transport:
            self.early += data
            self.transport.pause_reading()
        else:
            super().data_received(data)

    def eof_received(self) -> bool:
        if self.peer is None:
            self.ended = True
            return True
        return super().eof_received()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        target = loop.create_connection(lambda: Pipe(self), self.forward["host"], self.forward["port"])
        try:
            transport, peer = await asyncio.wait_for(target, CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError):
            if self.transport:
                reset(self.transport)
            return
        if self.transport is None or self.transport.is_closing():
            transport.abort()
            return
        self.peer = peer
        transport.write(self.early)
        if self.ended:
            transport.write_eof()
        self.transport.resume_reading()


class Forwarder:
    def __init__(self, machine: int, node: int, kept: Path) -> None:
        self.machine, self.node, self.kept = machine, node, kept
        self.forwards: dict[str, Forward] = {}
        self.servers: dict[str, asyncio.Server] = {}

    async def add(self, forward: Forward) -> Forward:
        """Open a forward; one of the same name keeps its port unless another is asked for."""
        known = self.forwards.get(forward["name"])
        opened: Forward = {**forward, "local": forward["local"] or (known["local"] if known else 0)}
        if known:
            if known == opened:
                return known
            await self.remove(forward["name"])
        with self._on_machine():
            listener = socket.create_server(("127.0.0.1", opened["local"]), backlog=1024)
        opened["local"] = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self.servers[forward["name"]] = await loop.create_server(lambda: Accepted(opened), sock=listener, backlog=1024)
        self.forwards[forward["name"]] = opened
        self._keep()
        return opened

    async def remove(self, name: str) -> None:
        if name in self.servers:
            self.servers.pop(name).close()
            self.forwards.pop(name)
            self._keep()

    async def restore(self) -> None:
        if not self.kept.exists():
            return
        for forward in json.loads(self.kept.read_text()):
            try:
                await self.add(forward)
            except OSError as error:
                print(f"{forward['name']}: {error}", file=sys.stderr, flush=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, each a line of JSON."""
        try:
            answer = await self._answer(json.loads(await reader.readline()))
        except (OSError, ValueError, KeyError) as error:
            answer = {"error": str(error)}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "add" in request:
            return {"forward": await self.add(request["add"])}
        if "remove" in request:
            await self.remove(request["remove"])
        return {"forwards": list(self.forwards.values())}

    @contextmanager
    def _on_machine(self) -> Generator[None]:
        enter_network(self.machine)
        try:
            yield
        finally:
            enter_network(self.node)

    def _keep(self) -> None:
        temporary = self.kept.with_suffix(".new")
        temporary.write_text(json.dumps(list(self.forwards.values())))
        temporary.replace(self.kept)


async def main(network: str, control: str, kept: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    machine, node = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(network, os.O_RDONLY)
    enter_network(node)
    forwarder = Forwarder(machine, node, Path(kept))
    await forwarder.restore()
    Path(control).unlink(missing_ok=True)
    server = await asyncio.start_unix_server(forwarder.serve, control)
    Path(control).chmod(0o600)
    async with server:
        await server.serve_forever()


# --- for other processes: requests to the forwarder ---


def add(control: Path, forward: Forward) -> int:
    """Open a forward, or find it open; the port on the machine's loopback."""
    return _ask(control, {"add": forward})["forward"]["local"]


def remove(control: Path, name: str) -> None:
    _ask(control, {"remove": name})


def listed(control: Path) -> list[Forward]:
    return _ask(control, {})["forwards"]


def answers(control: Path) -> bool:
    try:
        listed(control)
    except (OSError, ClusterError):
        return False
    return True


def _ask(control: Path, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONTROL_SECONDS)
        try:
            connection.connect(str(control))
        except OSError as error:
            raise ClusterError("the cluster's forwarder does not answer; run: python -m e2e.cluster up") from error
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(connection.makefile().readline() or "{}")
    if "error" in answer:
        raise ClusterError(f"the forward could not be opened: {answer['error']}; is the port in use?")
    return answer


if __name__ == "__main__":
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(main(*sys.argv[1:]))
