"""Pods of two kinds behind one router, as a rollout between one pool and two brings them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import FakeEngine
from tests.runtime.waiting import until

REQUESTS = 60


def aggregated(pods: int) -> list[FakeEngine]:
    return [FakeEngine("decode", f"a{i}", "aggregated", aggregated=True) for i in range(pods)]


async def held_by(router: RouterFactory, engines: Sequence[FakeEngine], counted: Sequence[FakeEngine]) -> int:
    """Of requests that all run at the same time, those that `counted` have."""
    for engine in engines:
        engine.first_gate.clear()
        if engine.role == "prefill":
            engine.first_gate.set()
    async with router(*engines) as r:
        replies = [asyncio.create_task(r.complete(stream=True)) for _ in range(REQUESTS)]
        decodes = [e for e in engines if e.role == "decode"]
        await until(lambda: sum(len(e.requests) for e in decodes) == REQUESTS)
        held = sum(len(e.requests) for e in counted)
        for engine in decodes:
            engine.first_gate.set()
        assert {reply.content for reply in await asyncio.gather(*replies)} == {"Hello world"}
    return held


async def test_the_first_new_pair_beside_ten_pods_for_both_phases_gets_its_share(router: RouterFactory) -> None:
    pair = FakeEngine("prefill", "p0"), FakeEngine("decode", "d0")
    held = await held_by(router, [*aggregated(10), *pair], [pair[1]])
    assert abs(held - REQUESTS * 2 / 12) < 4
    assert len(pair[0].requests) == held, "each of these is prefilled by the prefill pod"


async def test_the_first_new_pod_for_both_phases_beside_pairs_gets_its_share(router: RouterFactory) -> None:
    old = [FakeEngine(role, f"{role}{i}") for role in ("prefill", "decode") for i in range(5)]
    held = await held_by(router, [*old, *(new := aggregated(1))], new)
    assert abs(held - REQUESTS / 11) < 4


async def test_new_decode_pods_wait_for_their_prefill_pods_and_the_first_of_these_takes_its_part(
    router: RouterFactory,
) -> None:
    """Three of the four new prefill pods are not ready."""
    old = aggregated(9)
    new = [FakeEngine("prefill", f"p{i}") for i in range(4)] + [FakeEngine("decode", f"d{i}") for i in range(4)]
    async with router(*old, *new) as r:
        for engine in new[:4]:
            r.server.pod_registry.put(engine.pod(ready=False))
        for _ in range(20):
            await r.complete()
        assert not [e for e in new if e.requests]
        r.server.pod_registry.put(new[0].pod())
        before = sum(len(e.requests) for e in old)
        for _ in range(55):
            await r.complete()
        assert abs(len(new[0].requests) - 10) < 4, "a quarter of eight pods beside nine: 2 of 11"
        assert sum(len(e.requests) for e in old) - before + len(new[0].requests) == 55
