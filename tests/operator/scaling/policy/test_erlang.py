"""Erlang's delay formula against published values, and what follows from it."""

from __future__ import annotations

import math

import pytest

from phasewise_operator.scaling.policy.erlang import delay_probabilities, servers_for, servers_to_keep_up


def erlang_c(servers: int, load: float) -> float:
    return next(c for n, c in delay_probabilities(load) if n == servers)


@pytest.mark.parametrize(
    ("servers", "load", "expected"),
    [
        (1, 0.5, 0.5),  # M/M/1: the load itself
        (2, 1.0, 1 / 3),
        (3, 2.0, 4 / 9),
        (5, 4.0, 0.5541),
        (10, 8.0, 0.4092),
        (100, 90.0, 0.2169),
        (2, 2.0, 1.0),
        (3, 9.0, 1.0),
        (4, 0.0, 0.0),
    ],
)
def test_erlang_c_has_the_known_values(servers: int, load: float, expected: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("load", [0.01, 0.3, 1.0, 2.4, 13.4, 250.0, 3000.0])
def test_the_fewest_servers_that_meet_the_tail(load: float) -> None:
    service, wait, tail = 0.6, 0.8, 0.025

    def late(n: int) -> float:
        return erlang_c(n, load) * math.exp(-(n - load) * wait / service) if n > load else 1.0

    n = servers_for(load, service, wait, tail)
    assert late(n) <= tail
    assert n == 1 or late(n - 1) > tail


@pytest.mark.parametrize(
    ("load", "service", "wait", "expected"),
    [
        (0.0, 0.6, 0.8, 0),
        (0.05, 0.6, 0.8, 1),
        (0.6, 0.6, 0.8, 2),
        (1.46, 0.61, 0.8, 4),
        (1.46, 0.61, 8.0, 2),  # who may wait long needs little more than the load
    ],
)
def test_a_longer_wait_needs_fewer_servers(load: float, service: float, wait: float, expected: int) -> None:
    assert servers_for(load, service, wait, 0.025) == expected


@pytest.mark.parametrize(("load", "expected"), [(0.0, 0), (0.5, 1), (0.86, 2), (1.7, 2), (8.6, 11)])
def test_servers_that_only_keep_up_are_busy_at_most_85_percent(load: float, expected: int) -> None:
    assert servers_to_keep_up(load) == expected
