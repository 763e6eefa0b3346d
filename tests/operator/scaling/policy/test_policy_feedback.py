"""What measured latency does: who is the bottleneck, when a step is made, and when none would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.scaling.policy.signal_factory import Service, busy, make_signals, pods, pool

from phasewise_operator.scaling.types import Latency, Outcomes, Signals, TtftParts


def test_a_prompt_that_is_too_long_adds_nothing() -> None:
    def long(n: int) -> Signals:
        return make_signals(
            {
                "prefill": pods("prefill", n, concurrency=0.6 / n, busy=0.6 / n, requests=2 / n),
                "decode": pods("decode", 1, concurrency=0.1, busy=0.1, requests=2, itl=0.02, tokens=10),
            },
            arrivals=0.2,
            active=1.0,
            awaiting={"prefill": 1.0},
            overdue={"prefill": 1.0},
            ttft=Latency(6, 3.1, 3.1, 3.2, 3.2),
            outcomes=Outcomes(ttft_missed=6),
            parts=TtftParts(
                router_queue=0, prefill_queue=0.01, prefill=3.0, transfer=0.05, admission=0, first_token=0.02
            ),
        )

    service = Service()
    for _ in range(100):
        service.tick(long(service.sizes[0]))
    decisions = service.tick(long(service.sizes[0]))
    assert service.sizes == (1, 1)
    assert decisions["prefill"].reason == "PromptTooLong"
    assert "tensor parallelism" in decisions["prefill"].message


def missed(prefill: int, decode: int, parts: dict[str, float], **changes: Any) -> Signals:
    """Half of the first tokens are late, for the parts given; load that the models find small."""
    return busy(
        prefill,
        decode,
        rate=0.5,
        **{
            "ttft": Latency(20, 2.4, 2.1, 4.0, 4.0),
            "outcomes": Outcomes(met=10, ttft_missed=10),
            "parts": TtftParts(**{"prefill": 0.5, "transfer": 0.02, "first_token": 0.02, **parts}),
            "awaiting": {"prefill": 0.0, "decode": 3.0, "queue": 0.0},
            "overdue": {"prefill": 0.0, "decode": 1.0, "queue": 0.0},
            **changes,
        },
    )


@pytest.mark.parametrize(
    ("case", "parts", "changes", "grows"),
    [
        ("prefill queue", {"prefill_queue": 1.8, "admission": 0.1}, {}, "prefill"),
        ("admission", {"prefill_queue": 0.1, "admission": 1.8}, {}, "decode"),
        ("first token", {"prefill_queue": 0.1, "first_token": 1.4}, {}, "decode"),
        ("transfer", {"transfer": 2.2, "prefill_queue": 0.3}, {}, ""),
        ("prompt alone", {"prefill": 2.3, "prefill_queue": 0.3}, {}, ""),
        ("router queue, nobody at a limit", {"router_queue": 2.0}, {}, ""),
        ("few judged", {"prefill_queue": 1.8}, {"ttft": Latency(3, 2.4, 2.1, 4.0, 4.0)}, ""),
        ("failed only", {"prefill_queue": 1.8}, {"ttft": None, "outcomes": Outcomes(met=10, failed=10)}, ""),
        (
            "one in twenty",
            {"prefill_queue": 1.8},
            {"ttft": Latency(20, 1, 0.5, 2.1, 2.1), "outcomes": Outcomes(met=19)},
            "",
        ),
    ],
)
def test_the_bottleneck_gets_the_replica(
    case: str, parts: dict[str, float], changes: dict[str, Any], grows: str
) -> None:
    service = Service(pool("prefill", 2), pool("decode", 2))
    seen: list[str] = []
    for _ in range(40):
        decisions = service.tick(missed(service.sizes[0], service.sizes[1], parts, **changes))
        seen += [v.reason for v in decisions.values()]
    grown = {role for role, size in zip(service.pools, service.sizes, strict=True) if size > 2}
    assert grown == ({grows} if grows else set()), case
    assert bool(grows) <= ("TtftMissed" in seen)


def test_no_second_step_while_the_last_one_starts() -> None:
    service = Service(pool("prefill", 2), pool("decode", 2))
    service.run(30, missed(2, 2, {"prefill_queue": 1.8}))
    assert service.sizes[0] == 2, "what was measured before the pool was whole for an SLO window says nothing of it"
    for _ in range(60):
        service.tick(missed(2, 2, {"prefill_queue": 1.8}))
        service.change("prefill", ready=2)
    decisions = service.tick(missed(2, 2, {"prefill_queue": 1.8}))
    assert service.sizes[0] == 3
    assert decisions["prefill"].reason == "Starting"


def test_stabilization_keeps_the_correction_from_measured_latency() -> None:
    service = Service(pool("prefill", 2), pool("decode", 2, min=2), stabilization=20)
    for _ in range(20):
        service.tick(missed(service.sizes[0], service.sizes[1], {"prefill_queue": 1.8}))
    assert service.sizes[0] == 3, "one step, and the next only after another SLO window"
    for _ in range(100):
        service.tick(busy(service.sizes[0], service.sizes[1], rate=0.5))
    assert service.sizes[0] == 3
    for _ in range(100):
        service.tick(busy(service.sizes[0], service.sizes[1], rate=0.2))
    assert service.sizes[0] == 1


def test_decode_alone_does_both_phases() -> None:
    service = Service(pool("decode", 2))
    parts = TtftParts(admission=1.8, first_token=0.4)
    load = pods("decode", 2, concurrency=4.0, busy=1.0, requests=5.0, running=4.0, itl=0.02, tokens=2000.0)
    late = make_signals(
        {"decode": load},
        arrivals=1.0,
        active=8.0,
        ttft=Latency(20, 2.4, 2.1, 4, 4),
        parts=parts,
        overdue={"decode": 1.0},
    )
    decisions = service.run(80, late)
    assert service.sizes[0] >= 3
    assert set(decisions) == {"decode"}


def test_a_prefill_pool_that_was_taken_out_of_the_spec_is_not_blamed() -> None:
    """What its pods have counted stays in the SLO window."""
    service = Service(pool("decode", 2))
    both = missed(1, 2, {"prefill_queue": 1.8})
    alone = replace(both, pools={"decode": both.pools["decode"]}, awaiting={"decode": 3.0}, overdue={"decode": 1.0})
    assert "behind other prompts" not in service.run(80, alone)["decode"].message
    assert service.sizes[0] <= 2, "nothing is added"
