"""Which names clients may ask for, and which one an engine gets."""

from __future__ import annotations

import pytest
from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import FakeEngine
from tests.runtime.waiting import until

from phasewise_runtime.router.model_names import renamed, served_names

OLD, NEW = "org/llama-3.1:8b", "llama-8b"


def test_the_name_of_the_spec_comes_first_and_each_name_once() -> None:
    assert served_names("b", ["c", "a", "b", "a"]) == ("b", "a", "c")
    assert served_names("b", []) == ("b",)


@pytest.mark.parametrize(
    ("body", "model", "sent"),
    [
        ({"model": "a", "n": 1}, "b", {"model": "b", "n": 1}),
        ({"n": 1}, "b", {"n": 1}),
        ({"model": None}, "b", {"model": None}),
        ({"model": "a"}, "", {"model": "a"}),
    ],
)
def test_an_engine_gets_the_name_that_it_knows(body: dict[str, object], model: str, sent: dict[str, object]) -> None:
    before = dict(body)
    assert renamed(body, model) == sent
    assert body == before


async def test_old_and_new_name_are_served_by_the_pods_of_both(router: RouterFactory) -> None:
    old = FakeEngine("prefill", "p0", model=OLD), FakeEngine("decode", "d0", model=OLD)
    new = FakeEngine("prefill", "p1", model=NEW), FakeEngine("decode", "d1", model=NEW)
    async with router(*old, *new, model_name=NEW) as r:
        listed = [card["id"] for card in (await r.get("/v1/models")).json["data"]]
        assert listed == [NEW, OLD]
        assert (await r.get(f"/v1/models/{OLD}")).json["id"] == OLD
        for name in (OLD, NEW) * 4:
            assert (await r.chat(model=name)).content == "Hello world"
            assert (await r.complete(model=name, stream=True)).content == "Hello world"
        assert (await r.chat(model="other")).status == 404
    for engine in (*old, *new):
        assert {body["model"] for body in engine.bodies} == {engine.model}, "each of them served some"


async def test_an_engine_of_the_old_name_answers_before_the_new_one_is_there(router: RouterFactory) -> None:
    old = FakeEngine("prefill", "p0", model=OLD), FakeEngine("decode", "d0", model=OLD)
    async with router(*old, model_name=NEW) as r:
        assert (await r.chat(model=NEW)).content == "Hello world"
        assert (await r.chat()).status == 404
        assert [b["model"] for b in old[1].bodies] == [OLD]


async def test_a_name_is_served_until_its_last_pod_is_gone(router: RouterFactory) -> None:
    old, new = FakeEngine("decode", "d0", model=OLD), FakeEngine("decode", "d1", model=NEW)
    async with router(old, new, model_name=NEW) as r:
        r.server.pod_registry.put(old.pod(terminating=True))
        assert (await r.chat(model=OLD)).content == "Hello world"
        assert [b["model"] for b in new.bodies] == [NEW]
        r.server.pod_registry.remove("d0")
        await until(lambda: r.server.pod_registry.models == {NEW})
        assert (await r.chat(model=OLD)).status == 404
