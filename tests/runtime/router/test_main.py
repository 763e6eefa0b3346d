"""The process: starts by its flags, ends by TERM with running streams served, says what is wrong and leaves."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.runtime.router.conftest import CHAT
from tests.runtime.router.fake_engine import MODEL, FakeEngine, engines
from tests.runtime.waiting import until

from phasewise_runtime.router.__main__ import main

RUNTIME = Path(__file__).parents[3] / "runtime"


@asynccontextmanager
async def process(*args: str) -> AsyncGenerator[Process, None]:
    command = ("-m", "phasewise_runtime.router", "--service", "s", "--model-name", MODEL, "--host", "127.0.0.1", *args)
    proc = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=PIPE, env={"PYTHONPATH": str(RUNTIME)})
    try:
        yield proc
    finally:
        if proc.returncode is None:
            proc.kill()
            await proc.wait()


async def event(proc: Process, name: str) -> dict[str, Any]:
    """The next log line of that event."""
    assert proc.stderr
    while line := await asyncio.wait_for(proc.stderr.readline(), 30):
        if (entry := json.loads(line))["event"] == name:
            return entry
    raise AssertionError(f"no '{name}' was logged")


async def test_term_lets_running_streams_end_and_exits_with_0(tmp_path: Path) -> None:
    p, d = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    d.gate.clear()
    file = tmp_path / "pods.json"
    async with engines(p, d):
        pods = [{"role": e.role, "name": e.name, "address": "127.0.0.1", "port": e.port} for e in (p, d)]
        file.write_text(json.dumps(pods))
        flags = ("--port", "0", "--admin-port", "0", "--settle-seconds", "0.1", "--static-pods", str(file))
        async with process(*flags) as proc, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{(await event(proc, 'router started'))['port']}/v1/chat/completions"
            async with session.post(url, json={**CHAT, "stream": True}) as response:
                text = await response.content.readany()
                proc.terminate()
                assert (await event(proc, "draining"))["requests"] == 1
                d.gate.set()
                text += await response.content.read()
            assert text.endswith(b"data: [DONE]\n\n")
            assert await asyncio.wait_for(proc.wait(), 10) == 0
    await until(lambda: p.ended == d.ended == 1)


async def test_a_port_in_use_is_reported() -> None:
    d = FakeEngine("decode", "d0")
    async with engines(d), process("--port", str(d.port), "--admin-port", "0", "--static-pods", __file__) as proc:
        _, err = await asyncio.wait_for(proc.communicate(), 30)
    assert proc.returncode == 1
    assert b"choose another port" in err
    assert b"Traceback" not in err


def test_outside_a_cluster_it_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SystemExit, match="--static-pods"):
        main(["--service", "s", "--model-name", "m", "--namespace", "n"])
