"""The demo's second part: two loads, each too much for one pool, and the pools that follow them.

First the targets are held against what the machine gives one request alone. Each load ends when its pool has grown and
is back within its target; then both pools are seen to return to one pod.
"""

from __future__ import annotations

import time

from e2e import cluster, targets
from e2e.results import latency
from e2e.shapes import GenerationHeavy, PromptHeavy, Shaped, applied
from e2e.stack import step
from e2e.watch import Printer, Watch

LOAD_SECONDS = 600
RETURN_SECONDS = 300
LATELY = 15.0


def show_scaling(url: str, service: str, namespace: str, model: str) -> bool:
    """Whether each pool grew under its load and returned, and no request failed."""
    watch = Watch(service, namespace)
    alone, slo = targets.fit(service, namespace, url, model)
    print(f"    one request alone: {alone}; targets: {slo}")
    watch.look()
    good = shown(PromptHeavy(url, model, target=slo.ttft), watch)
    good = shown(GenerationHeavy(url, model, target=slo.itl, ttft=slo.ttft), watch) and good
    print("==> no load: both pools return to one pod")
    printer = Printer(watch)
    back = watch.until(lambda: watch.all_at(1), RETURN_SECONDS, printer.tell)
    if not back:
        print(f"    the pools did not return to one pod in {RETURN_SECONDS} s")
    print(cluster.kubectl("get", "infsvc", service), end="")
    return good and back


def shown(load: Shaped, watch: Watch) -> bool:
    """Whether the load's pool grew from one pod to two, was within its target again, and no request failed."""
    role = load.shape.pool
    if not settled(watch, role):
        print(f"    {role} did not return to one pod in {RETURN_SECONDS} s: no {load.shape.name} load")
        return False
    grown = grow(load, watch)
    if not grown:
        print(f"    {role} did not come back within its target in {LOAD_SECONDS} s")
    return grown and not load.failed


def settled(watch: Watch, role: str) -> bool:
    """A second pod has to go first: an earlier run's, or one that slow requests before the load have made."""
    if watch.at(role, 1):
        return True
    with step(f"waiting until {role} has one pod again"):
        return watch.until(lambda: watch.at(role, 1), RETURN_SECONDS)


def grow(load: Shaped, watch: Watch) -> bool:
    role = load.shape.pool
    print(
        f"==> {load.shape.name} load, more than one {role} pod can take, until there are two and latency is in target"
    )
    printer = Printer(watch)
    before = len(watch.decisions)
    two_since: list[float] = []

    def done() -> bool:
        if watch.at(role, 2):
            load.enough.set()
            two_since.append(time.monotonic())
        # Long enough with two that what is told of them is not of the time with one.
        return bool(two_since) and time.monotonic() - two_since[0] > LATELY and watch.rows[role].in_target is True

    with applied(load):
        grown = watch.until(done, LOAD_SECONDS, printer.tell)
        ended = time.monotonic()
    told(load, two_since[0] if two_since else ended, ended)
    others = [f"{d['from']} -> {d['to']}" for d in watch.decisions[before:] if d["role"] != role]
    print(f"    the other pool: {', '.join(others) or 'no change of size'}")
    return grown


def told(load: Shaped, two_since: float, ended: float) -> None:
    one = latency([o for o in load.outcomes if two_since - LATELY < o.ended <= two_since])
    two = latency([o for o in load.outcomes if ended - LATELY < o.ended <= ended])
    print(f"    {load.size}; {len(load.outcomes)} requests, {len(load.failed)} failed")
    print(f"    one {load.shape.pool} pod: {one}")
    print(f"    two:             {two}")
