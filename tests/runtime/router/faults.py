"""Shared by the tests of faults: four engines, many requests, and what must hold of them."""

from __future__ import annotations

from typing import Any

from tests.runtime.router.conftest import Reply, Router
from tests.runtime.router.fake_engine import FakeEngine
from tests.runtime.waiting import until


def four() -> tuple[FakeEngine, FakeEngine, FakeEngine, FakeEngine]:
    return (
        FakeEngine("prefill", "p0"),
        FakeEngine("prefill", "p1"),
        FakeEngine("decode", "d0"),
        FakeEngine("decode", "d1"),
    )


async def many(r: Router, n: int, **fields: Any) -> list[Reply]:
    """`n` requests in a row, streaming and not, chat and completions."""
    return [
        await (r.chat if i % 2 else r.complete)(**{"stream": i % 4 < 2, "max_tokens": 4, **fields}) for i in range(n)
    ]


def complete(reply: Reply) -> bool:
    return reply.status == 200 and reply.content == "Hello world"


def once(engines: tuple[FakeEngine, ...]) -> bool:
    """No KV parameters were used twice."""
    used = [k for e in engines for k in e.kv_seen]
    return len(used) == len(set(used))


def state(r: Router, name: str) -> float:
    """KV paths in this state."""
    return r.metric("kv_paths", state=name)


async def failed(r: Router, reason: str) -> None:
    await until(lambda: r.metric("kv_failed_path", reason=reason) > 0)
