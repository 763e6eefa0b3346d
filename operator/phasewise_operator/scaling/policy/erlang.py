"""How many servers keep the waiting time short: Erlang's delay formula for M/M/n. Pure.

Erlang C and its waiting-time tail as in L. Kleinrock, Queueing Systems, vol. 1 (1975), section 3.4 (Erlang 1917).
With offered load a = arrival rate x service time and n servers:

    P(wait > t) = C(n, a) * exp(-(n - a) * t / s)

C is computed from Erlang B by the recurrence B(k) = a B(k-1) / (k + a B(k-1)), which neither overflows nor cancels.
Prompts are served in less varied times than exponential ones and several at once, so the formula errs to the safe side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

STABLE_USE = 0.85
"""Share of their time that servers may be busy where latency cannot be met anyway: beyond it queues grow long and
recover slowly (at 85 % of one server some six requests are in the system on average)."""


def delay_probabilities(load: float) -> Iterator[tuple[int, float]]:
    """(n, C(n, load)) for n = 1, 2, ...: the probability that an arrival waits; 1 where n servers cannot keep up."""
    blocking = 1.0
    for servers in itertools.count(1):
        blocking = load * blocking / (servers + load * blocking)
        yield servers, 1.0 if servers <= load else blocking / (1 - load / servers * (1 - blocking))


def servers_for(load: float, service: float, wait: float, tail: float) -> int:
    """The fewest servers for which at most the share `tail` of arrivals waits longer than `wait`."""
    if load <= 0:
        return 0
    late = ((n, c * math.exp(-(n - load) * wait / service)) for n, c in delay_probabilities(load) if n > load)
    return next(n for n, share in late if share <= tail)


def servers_to_keep_up(load: float) -> int:
    """The fewest servers that keep up with the load, whatever the wait."""
    return math.ceil(load / STABLE_USE)
