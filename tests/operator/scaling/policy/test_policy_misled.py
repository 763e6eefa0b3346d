"""Figures that are easily taken for something else: what the policy must not be misled by."""

from __future__ import annotations

import pytest
from tests.operator.scaling.policy.signal_factory import Service, busy, make_signals, pods, pool

from phasewise_operator.scaling.policy.load import aggregate
from phasewise_operator.scaling.policy.prefill import Prompts, learn
from phasewise_operator.scaling.types import Latency, Outcomes, Signals, TtftParts


def decoding(streams: float, itl: float, blocked: float = 0.0, kv: float = 0.1) -> Signals:
    """One decode pod; the targets are 2 s and 40 ms."""
    load = {"concurrency": streams, "busy": 1.0, "requests": 5.0, "running": streams, "itl": itl}
    decode = pods("decode", 1, None, **load, tokens=streams / itl * 10, blocked=blocked, kv_usage=kv)
    prompts = pods("prefill", 1, concurrency=0.1, busy=0.1, requests=5.0)
    return make_signals({"prefill": prompts, "decode": decode}, arrivals=0.5, active=streams)


@pytest.mark.parametrize(("batch", "kv", "grows"), [(0, 0.1, True), (64, 0.1, False), (4, 0.1, True), (64, 0.9, True)])
def test_requests_that_wait_for_their_turn_in_a_step_do_not_wait_for_room(batch: int, kv: float, grows: bool) -> None:
    """An engine with a small token budget calls them waiting for capacity all the same."""
    service = Service(pool("prefill"), pool("decode", batch=batch))
    for _ in range(20):
        service.tick(decoding(4.0, 0.012, blocked=4.0, kv=kv))
    assert (service.sizes[1] > 1) is grows


def test_an_overload_at_which_nobody_saw_a_stream_alone_is_no_target_out_of_reach() -> None:
    """A fresh operator finds 20 streams at more than twice the target: half of that may be floor, or may not."""
    service = Service()
    service.run(20, decoding(20.0, 0.09))
    assert service.sizes[1] > 1


def test_a_single_stream_that_misses_the_target_adds_nothing() -> None:
    service = Service()
    decisions = service.run(60, decoding(1.0, 0.06))
    assert service.sizes[1] == 1
    assert decisions["decode"].reason == "ItlUnattainable"


def test_where_nothing_comes_through_it_is_not_known_whether_decode_or_the_transfer_is_slow() -> None:
    service = Service(pool("prefill", 2), pool("decode", 2))
    stalled = busy(2, 2, rate=0.5, overdue={"decode": 8.0}, awaiting={"decode": 8.0}, parts=TtftParts())
    service.run(120, stalled)
    assert service.sizes[1] <= 2, "nothing is added"


def test_requests_that_clients_gave_up_do_not_make_prompts_dear() -> None:
    """The pool was busy all the time, and one of many requests succeeded."""
    load = aggregate(busy(rate=4.0))
    seen = learn(Prompts(busy=10.0, requests=1.0), load, TtftParts(prefill=0.5), 2.0, waiting=True)
    assert seen.seconds == pytest.approx(0.51)


def test_decode_is_corrected_though_prefill_has_a_queue_that_never_ends() -> None:
    """Prefill is at its maximum; ITL is made by decode alone."""
    service = Service(pool("prefill", max=1), pool("decode"))
    slow = busy(
        1,
        1,
        rate=3.0,
        awaiting={"prefill": 30.0},
        outcomes=Outcomes(met=10, itl_missed=10),
        itl=Latency(20, 0.05, 0.05, 0.06, 0.06),
    )
    decode = pods("decode", 1, concurrency=6.0, busy=1.0, requests=30.0, running=6.0, itl=0.037, tokens=1500.0)
    slow = make_signals(
        {"prefill": slow.pools["prefill"], "decode": decode},
        **{k: getattr(slow, k) for k in ("arrivals", "active", "awaiting", "outcomes", "itl")},
    )
    service.run(90, slow)
    assert service.sizes[1] > 1
