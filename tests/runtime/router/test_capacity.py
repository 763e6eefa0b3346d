"""The share of the requests that pods of two kinds get while they stand side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise_runtime.router.capacity import sizes_of
from phasewise_runtime.router.pods import Candidate, Pod
from phasewise_runtime.router.policy import Choice, choose


@dataclass(frozen=True)
class Pods:
    """Pods of one fingerprint: ready ones, and in all."""

    prefill: int
    decode: int
    all_prefill: int = 0
    all_decode: int = 0
    aggregated: bool = False
    gpus: int = 0

    def of(self, fingerprint: str) -> list[Pod]:
        sizes = (("prefill", self.prefill, self.all_prefill), ("decode", self.decode, self.all_decode))
        return [
            Pod(
                name := f"{fingerprint}-{role}-{i}",
                name,
                role,
                "10.0.0.1",
                fingerprint,
                ready=i < ready,
                aggregated=self.aggregated,
                gpus=self.gpus,
            )
            for role, ready, everything in sizes
            for i in range(max(ready, everything))
        ]


def both_phases(pods: int, gpus: int = 0) -> Pods:
    return Pods(0, pods, aggregated=True, gpus=gpus)


def share_of_new(old: Pods, new: Pods, *, in_flight: bool) -> float:
    """Of 600 requests that stay in flight, or end before the next one comes."""
    chosen = choices([*old.of("old"), *new.of("new")], 600, in_flight=in_flight)
    return sum(c.decode.fingerprint == "new" for c in chosen) / len(chosen)


def choices(pods: list[Pod], requests: int, *, in_flight: bool) -> list[Choice]:
    load: Counter[str] = Counter()
    chosen: list[Choice] = []
    for count in range(requests):
        prefills, decodes = (
            [Candidate(p, load[p.uid]) for p in pods if p.role == role and p.usable] for role in ("prefill", "decode")
        )
        choice = choose(prefills, decodes, known=sizes_of(pods), round_robin=count)
        assert choice is not None
        chosen.append(choice)
        if in_flight:
            load.update(pod.uid for pod in (choice.decode, choice.prefill) if pod is not None)
    return chosen


CASES: list[tuple[str, Pods, Pods, float]] = [
    ("aggregated to P/D: the first pair beside ten pods", both_phases(10), Pods(1, 1), 2 / 12),
    ("aggregated to P/D: all decode pods are ready, one prefill pod of four is", both_phases(10),
     Pods(1, 6, all_prefill=4), 2.5 / 12.5),
    ("aggregated to P/D: no prefill pod yet", both_phases(10), Pods(0, 6, all_prefill=4), 0),
    ("aggregated to P/D: all are ready", both_phases(10), Pods(4, 6), 1 / 2),
    ("P/D to aggregated: the first pod beside ten", Pods(4, 6), both_phases(1), 1 / 11),
    ("P/D to aggregated: the prefill pods have gone", Pods(0, 6), both_phases(2), 2 / 8),
    ("P/D to aggregated: without prefill pods, as soon as as many are ready", Pods(0, 6), both_phases(6), 1),
    ("P/D to P/D: a pair beside ten", Pods(10, 10), Pods(1, 1), 1 / 11),
    ("P/D to P/D: the scarcer role decides", Pods(4, 6), Pods(1, 6), 1 / 5),
    ("P/D to P/D: the scarcer role decides, of few prefill pods", Pods(1, 6), Pods(1, 1), 1 / 7),
    ("P/D to P/D: decode pods without their prefill pods wait", Pods(4, 6), Pods(0, 6), 0),
    ("P/D to P/D: the old has lost its prefill pods", Pods(0, 10), Pods(1, 1), 2 / 12),
    ("a smaller old revision", Pods(1, 2), Pods(2, 4), 2 / 3),
    ("aggregated to aggregated", both_phases(9), both_phases(1), 1 / 10),
    ("pods of four GPUs beside pods of one", both_phases(4, gpus=1), both_phases(1, gpus=4), 1 / 2),
]  # fmt: skip


@pytest.mark.parametrize("in_flight", [False, True], ids=["one at a time", "piling up"])
@pytest.mark.parametrize(("old", "new", "share"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_pods_of_two_kinds_share_the_requests_by_what_is_ready(
    old: Pods, new: Pods, share: float, in_flight: bool
) -> None:
    assert share_of_new(old, new, in_flight=in_flight) == pytest.approx(share, abs=0.01)


def test_pods_of_one_fingerprint_share_the_requests_by_their_gpus() -> None:
    """A change of the size of replicas keeps the fingerprint."""
    small, large = (Pod(n, n, "decode", "10.0.0.1", "fp", ready=True, gpus=g) for n, g in (("small", 1), ("large", 4)))
    for in_flight in (True, False):
        chosen = [c.decode.name for c in choices([small, large], 100, in_flight=in_flight)]
        assert chosen.count("small") == 20


kinds = st.builds(
    Pods,
    prefill=st.integers(0, 5),
    decode=st.integers(0, 5),
    all_prefill=st.integers(0, 5),
    all_decode=st.integers(0, 5),
    aggregated=st.booleans(),
)


@settings(deadline=None)
@given(st.lists(kinds, min_size=1, max_size=3), st.booleans())
def test_pairs_have_one_fingerprint_and_no_complete_pod_starves(given_: list[Pods], in_flight: bool) -> None:
    pods = [pod for i, kind in enumerate(given_) for pod in kind.of(f"fp{i}")]
    pods = [p for p in pods if not (p.aggregated and p.role == "prefill")]
    ready = [p for p in pods if p.usable]
    if not any(p.role == "decode" for p in ready):
        return
    chosen = choices(pods, 400, in_flight=in_flight)
    assert all(c.prefill is None or c.prefill.fingerprint == c.decode.fingerprint for c in chosen)
    assert all(c.prefill is None for c in chosen if c.decode.aggregated)
    served = {pod.uid for c in chosen for pod in (c.decode, c.prefill) if pod is not None}
    paired = {p.fingerprint for p in ready if p.role == "prefill"} & {
        p.fingerprint for p in ready if p.role == "decode"
    }
    complete = {p.uid for p in ready if p.aggregated or p.fingerprint in paired}
    assert complete <= served


def test_pods_that_are_being_deleted_do_not_say_how_many_belong_together() -> None:
    pods = [
        Pod("u0", "p0", "prefill", "", "fp", ready=False, gpus=4),
        Pod("u1", "p1", "prefill", "10.0.0.1", "fp", ready=True, gpus=4),
        Pod("u2", "p2", "prefill", "10.0.0.1", "fp", ready=True, terminating=True, gpus=4),
        Pod("u3", "d0", "decode", "10.0.0.1", "fp", ready=True),
    ]
    assert sizes_of(pods) == {("prefill", "fp"): 8, ("decode", "fp"): 1}
