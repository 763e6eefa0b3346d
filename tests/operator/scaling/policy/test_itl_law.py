"""The law of ITL: what it learns, what it holds to while it knows little, and what a replica holds by it."""

from __future__ import annotations

import math
import random

import pytest

from phasewise_operator.scaling.policy.itl_law import ItlLaw


def taught(*samples: tuple[float, float], weight: float = 1.0) -> ItlLaw:
    law = ItlLaw()
    for streams, itl in samples:
        law = law.learn(streams, itl, weight)
    return law


def test_without_samples_nothing_is_known() -> None:
    assert not ItlLaw().has_samples


def test_one_point_is_half_floor_and_half_growth() -> None:
    law = taught((10, 0.020))
    assert (law.floor, law.slope) == (pytest.approx(0.010), pytest.approx(0.001))
    assert law.thin


@pytest.mark.parametrize(("floor", "slope"), [(0.010, 0.001), (0.030, 0.0), (0.0, 0.002), (0.005, 0.0001)])
def test_samples_that_differ_show_the_true_law(floor: float, slope: float) -> None:
    dice = random.Random(3)
    law = taught(*((b, (floor + slope * b) * dice.uniform(0.97, 1.03)) for b in [1, 5, 10, 20, 30, 40] * 8))
    assert not law.thin
    for streams in (5, 20, 40):
        assert law.at(streams) == pytest.approx(floor + slope * streams, rel=0.1)


def test_a_falling_line_is_taken_as_flat_and_a_steep_one_starts_at_zero() -> None:
    falling = taught(*[(1, 0.021), (20, 0.02)] * 100)
    assert falling.slope == 0
    steep = taught(*[(10, 0.001), (20, 0.08)] * 10)
    assert steep.floor == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("target", "expected"),
    [(0.040, 27.1), (0.020, 9.1), (0.010, 1.0), (0.001, 1.0)],
)
def test_a_replica_is_filled_to_nine_tenths_of_what_the_target_leaves_above_a_stream_alone(
    target: float, expected: float
) -> None:
    law = taught(*((b, 0.010 + 0.001 * b) for b in [1, 100] * 2000))
    assert law.capacity(target) == pytest.approx(expected, rel=0.02)


def test_where_streams_do_not_slow_each_other_there_is_no_end() -> None:
    flat = taught(*[(1, 0.021), (30, 0.02)] * 100)
    assert flat.capacity(0.04) == math.inf
    assert flat.capacity(0.01) == 1


def test_old_samples_give_way_to_new_ones() -> None:
    old = taught(*((b, 0.010 + 0.001 * b) for b in [5, 10, 20] * 20)).forget(3600)
    for b in [5, 10, 20] * 20:
        old = old.learn(b, 0.030 + 0.002 * b, 1.0)
    assert old.at(10) == pytest.approx(0.050, rel=0.05)
    assert old.slope == pytest.approx(0.002, rel=0.1)


@pytest.mark.parametrize(("streams", "itl", "weight"), [(0, 0.02, 1), (3, 0, 1), (3, 0.02, 0)])
def test_a_sample_without_streams_itl_or_weight_teaches_nothing(streams: float, itl: float, weight: float) -> None:
    assert ItlLaw().learn(streams, itl, weight) == ItlLaw()


def test_a_target_just_above_a_stream_alone_is_no_replica_a_stream() -> None:
    """0.1 ms a stream and a floor of 37 ms: thirty streams would meet 40 ms."""
    law = taught(*[(b, 0.037 + 0.0001 * b) for b in (1, 5, 10, 20)] * 30)
    assert law.capacity(0.04) > 20


@pytest.mark.parametrize(
    ("samples", "known"),
    [
        ([(20, 0.09)] * 200, False),
        ([(20, 0.09), (22, 0.095)] * 200, False),
        ([(4, 0.09), (8, 0.09), (12, 0.09)], False),
        ([(5, 0.03), (20, 0.09)] * 30, True),
        ([(1, 0.06)] * 3, True),
    ],
    ids=["a steady load", "one that hardly moves", "a burst's first looks", "loads that differ", "alone"],
)
def test_itl_of_a_single_stream_is_known_only_from_measurement(samples: list[tuple[float, float]], known: bool) -> None:
    assert taught(*samples).knows_alone is known


@pytest.mark.parametrize("changed", [(15, 0.025), (1, 0.05)], ids=["more and quicker", "fewer and slower"])
def test_samples_that_contradict_old_ones_replace_them(changed: tuple[float, float]) -> None:
    law = taught(*[(3, 0.030)] * 300, changed)
    assert (law.streams, law.itl) == (pytest.approx(changed[0]), pytest.approx(changed[1]))


def test_noise_contradicts_nothing() -> None:
    law = taught(*[(10, 0.020), (14, 0.0195), (7, 0.0205)] * 20)
    assert law.weight == pytest.approx(60)


def test_the_widest_sample_is_remembered_for_a_while() -> None:
    law = taught(*[(5, 0.02)] * 50, (40, 0.055), *[(5, 0.02)] * 5)
    assert law.widest == 40
    assert 5 < law.forget(600).widest < 25
    assert taught((5, 0.02)).learn(40, 0.055, 0.1).widest < 10, "a few tokens are no sample of forty streams"
