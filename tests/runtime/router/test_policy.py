"""Which pods serve a request, as tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise_runtime.router.pods import Candidate, Pod
from phasewise_runtime.router.policy import Choice, choose, choose_decode


def p(name: str, load: int = 0, fp: str = "a", *, ejected: bool = False, tried: int = 0) -> Candidate:
    return Candidate(Pod(name, name, "prefill", "10.0.0.1", fp, ready=True), load, ejected, tried)


def d(
    name: str, load: int = 0, fp: str = "a", *, ejected: bool = False, tried: int = 0, aggregated: bool = False
) -> Candidate:
    pod = Pod(name, name, "decode", "10.0.0.2", fp, ready=True, aggregated=aggregated)
    return Candidate(pod, load, ejected, tried)


CASES: list[tuple[str, list[Candidate], list[Candidate], str | None, tuple[str | None, str, str] | None]] = [
    ("no pods", [], [], None, None),
    ("prefill only", [p("p")], [], None, None),
    ("one pair", [p("p")], [d("d")], None, ("p", "d", "pair")),
    ("least loaded", [p("p0", 2), p("p1", 1)], [d("d0", 5), d("d1", 4)], None, ("p1", "d1", "pair")),
    ("equal fingerprints only", [p("p", fp="b")], [d("d")], None, (None, "d", "no_prefill_pod")),
    (
        "the pair before a less loaded decode without peer",
        [p("p")],
        [d("d0", 9), d("d1", 0, "b")],
        None,
        ("p", "d0", "pair"),
    ),
    ("old and new pair by load", [p("p0"), p("p1", fp="b")], [d("d0", 9), d("d1", 1, "b")], None, ("p1", "d1", "pair")),
    ("peer of its own fingerprint", [p("p0", 9), p("p1", 0, "b")], [d("d0")], None, ("p0", "d0", "pair")),
    ("no prefill pool", [], [d("d", aggregated=True)], None, (None, "d", "not_disaggregated")),
    ("no prefill pod", [], [d("d")], None, (None, "d", "no_prefill_pod")),
    ("ejected prefill", [p("p", ejected=True)], [d("d")], None, (None, "d", "prefill_ejected")),
    ("prefill that failed this request", [p("p", tried=1)], [d("d")], None, (None, "d", "prefill_failed")),
    ("the other prefill", [p("p0", tried=1), p("p1", 9)], [d("d")], None, ("p1", "d", "pair")),
    ("ejected decode", [p("p")], [d("d0", ejected=True), d("d1", 9)], None, ("p", "d1", "pair")),
    ("only ejected decodes", [p("p")], [d("d0", ejected=True)], None, None),
    ("decode not yet tried", [p("p")], [d("d0", 0, tried=1), d("d1", 9)], None, ("p", "d1", "pair")),
    ("tried decode rather than none", [p("p")], [d("d0", tried=2)], None, ("p", "d0", "pair")),
    (
        "untried decode though it has no peer",
        [p("p")],
        [d("d0", tried=1), d("d1", 0, "b")],
        None,
        (None, "d1", "no_prefill_pod"),
    ),
    ("decode-only by its fields", [p("p")], [d("d0", 1), d("d1")], "several_choices", (None, "d1", "several_choices")),
]


@pytest.mark.parametrize(
    ("prefills", "decodes", "decode_only", "want"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_choice(
    prefills: list[Candidate],
    decodes: list[Candidate],
    decode_only: str | None,
    want: tuple[str | None, str, str] | None,
) -> None:
    got = choose(prefills, decodes, decode_only=decode_only)
    assert (got and (got.prefill.name if got.prefill else None, got.decode.name, got.reason)) == want


def test_idle_pods_of_several_gpus_take_turns() -> None:
    pods = [Candidate(replace(d(f"d{n}").pod, gpus=8)) for n in range(4)]
    choices = [choose([], pods, round_robin=n) for n in range(8)]
    assert [c and c.decode.name for c in choices] == ["d0", "d1", "d2", "d3"] * 2


@pytest.mark.parametrize("sizes", [(21, 13), (55, 21), (5, 3)])
def test_no_pod_of_several_groups_waits_much_longer_for_a_request_than_its_share_takes(sizes: tuple[int, int]) -> None:
    pods = [
        d(f"{group}{n}", fp=group, aggregated=True)
        for group, size in zip("ab", sizes, strict=True)
        for n in range(size)
    ]
    chosen = [choose([], pods, round_robin=n) for n in range(100 * len(pods))]
    for pod in pods:
        turns = [n for n, c in enumerate(chosen) if c and c.decode == pod.pod]
        gaps = [after - before for before, after in pairwise(turns)]
        assert max(gaps) <= 5 * len(pods), pod.pod.name


def test_equal_pods_share_the_work() -> None:
    pods = [d("d0"), d("d1"), d("d2")]
    names = [choice.decode.name for i in range(6) if (choice := choose([], pods, round_robin=i))]
    assert sorted(names) == ["d0", "d0", "d1", "d1", "d2", "d2"]


@pytest.mark.parametrize(
    ("decodes", "want"),
    [
        ([], None),
        ([d("d0", fp="b")], None),
        ([d("d0", tried=1)], None),
        ([d("d0", ejected=True)], None),
        ([d("d0", 4), d("d1", 2)], "d1"),
    ],
)
def test_another_decode_pod_for_the_same_kv(decodes: list[Candidate], want: str | None) -> None:
    pod = choose_decode(decodes, p("p").pod)
    assert (pod and pod.name) == want


candidate = st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.booleans(), st.integers(0, 2))


@given(st.lists(candidate, max_size=5), st.lists(candidate, max_size=5), st.integers(0, 99))
def test_no_choice_breaks_a_rule(
    ps: list[tuple[int, str, bool, int]], ds: list[tuple[int, str, bool, int]], round_robin: int
) -> None:
    prefills = [p(f"p{i}", n, fp, ejected=e, tried=t) for i, (n, fp, e, t) in enumerate(ps)]
    decodes = [d(f"d{i}", n, fp, ejected=e, tried=t) for i, (n, fp, e, t) in enumerate(ds)]
    got: Choice | None = choose(prefills, decodes, round_robin=round_robin)
    usable = [c for c in decodes if not c.ejected]
    assert (got is None) == (not usable)
    if got is None:
        return
    assert got.decode in [c.pod for c in usable]
    if got.prefill is None:
        assert got.reason != "pair"
    else:
        assert got.reason == "pair"
        assert got.prefill.fingerprint == got.decode.fingerprint
        assert got.prefill in [c.pod for c in prefills if not c.ejected and not c.tried]


def test_a_prefill_pod_of_which_nothing_is_proved_adds_no_capacity() -> None:
    prefills = [p("p0"), p("p1", fp="b"), p("p2", fp="b")._replace(proved=False)]
    decodes = [d("d0"), d("d1"), d("d2", fp="b"), d("d3", fp="b")]
    sizes = {("prefill", "b"): 2, ("decode", "b"): 2}
    chosen = [choose(prefills, decodes, known=sizes, round_robin=n) for n in range(200)]
    assert sum(c is not None and c.decode.fingerprint == "b" for c in chosen) == pytest.approx(100, abs=2)


def test_kv_states_of_decode_pods_in_one_fingerprint() -> None:
    pairs, none = d("d0")._replace(peers={"p0"}), d("d1")._replace(peers=frozenset(), failed_peers={"p0"})
    for decodes, want in (
        ([pairs, none], ("d0", "p0", "pair")),
        ([none], ("d1", None, "kv_failed")),
        ([none._replace(failed_peers=frozenset())], ("d1", None, "kv_not_proved")),
        ([pairs._replace(load=9), d("new")._replace(proved=False, peers=frozenset())], ("d0", "p0", "pair")),
    ):
        got = choose([p("p0")], decodes)
        assert got is not None
        assert (got.decode.name, got.prefill and got.prefill.name, got.reason) == want
