"""How many servers keep the waiting time short: Erlang's delay formula for M/M/n. Pure; standard library only.

Erlang C and its waiting-time tail as in L. Kleinrock, Queueing Systems, vol. 1 (1975), section 3.4 (Erlang 1917).
With offered load a = arrival rate x service time and n servers:

    P(wait > t) = C(n, a) * exp(-(n - a) * t / s)

C is computed from Erlang B by the recurrence B(k) = a B(k-1) / (k + a B(k-1)), which neither overflows nor cancels.
Prompts are served in less varied times than exponential ones and several at once, so the formula errs to the safe side.
"""

from __future__ import annotations

import math

STABLE_USE = 0.85
"""Share of their time that servers may be busy where latency cannot be met anyway: beyond it queues grow long and
recover slowly (at 85 % of one server some six requests are in the system on average)."""


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival must wait; 1 where the load is more than the servers can carry."""
    if load <= 0:
        return 0.0
    if servers <= load:
        return 1.0
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = load * blocking / (k + load * blocking)
    return _delay(blocking, servers, load)


def servers_for(load: float, service: float, wait: float, tail: float) -> int:
    """The fewest servers for which at most the share `tail` of arrivals waits longer than `wait`."""
    if load <= 0:
        return 0
    blocking, n = 1.0, 0
    while True:
        n += 1
        blocking = load * blocking / (n + load * blocking)
        if n > load and _delay(blocking, n, load) * math.exp(-(n - load) * wait / service) <= tail:
            return n


def servers_to_keep_up(load: float) -> int:
    """The fewest servers that keep up with the load, whatever the wait."""
    return math.ceil(load / STABLE_USE)


def _delay(blocking: float, servers: int, load: float) -> float:
    return blocking / (1 - load / servers * (1 - blocking))
