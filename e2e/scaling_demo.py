"""The demo's second part: two loads, each too much for one pool, and the pools that follow them.

First the targets are compared with the latency of single requests. Each load ends when its pool has grown and is back
within its target; at the end both pools return to one pod.
"""

from __future__ import annotations

import time

from e2e import cluster, targets
from e2e.cluster.progress import step
from e2e.load import latency
from e2e.load_shapes import GenerationHeavy, PromptHeavy, ShapedLoad, applied
from e2e.watch import Printer, Watch

LOAD_SECONDS = 600
RETURN_SECONDS = 300
RECENT_SECONDS = 15.0
"""Latency is shown over so many seconds before the second pod, and before the end of the load."""


def show_scaling(url: str, service: str, namespace: str, model: str) -> bool:
    """Whether each pool grew under its load and returned, and no request failed."""
    watch = Watch(service, namespace)
    single, slo = targets.fit(service, namespace, url, model)
    print(f"    single requests: {single}; targets: {slo}")
    watch.refresh()
    succeeded = scales(PromptHeavy(url, model, target=slo.ttft), watch)
    succeeded = scales(GenerationHeavy(url, model, target=slo.itl, ttft=slo.ttft), watch) and succeeded
    print("==> no load: both pools return to one pod")
    printer = Printer(watch)
    returned = watch.wait(lambda: watch.all_at(1), RETURN_SECONDS, printer.show)
    if not returned:
        print(f"    the pools did not return to one pod in {RETURN_SECONDS} s")
    print(cluster.kubectl("get", "infsvc", service), end="")
    return succeeded and returned


def scales(load: ShapedLoad, watch: Watch) -> bool:
    """Whether the load's pool grew from one pod to two, was within its target again, and no request failed."""
    role = load.shape.pool
    if not wait_for_one_pod(watch, role):
        print(f"    {role} did not return to one pod in {RETURN_SECONDS} s: no {load.shape.name} load")
        return False
    grown = grow(load, watch)
    if not grown:
        print(f"    {role} did not come back within its target in {LOAD_SECONDS} s")
    return grown and not load.failed


def wait_for_one_pod(watch: Watch, role: str) -> bool:
    """Slow requests before the load, or an earlier run, may have left a second pod."""
    if watch.at(role, 1):
        return True
    with step(f"waiting until {role} has one pod again"):
        return watch.wait(lambda: watch.at(role, 1), RETURN_SECONDS)


def grow(load: ShapedLoad, watch: Watch) -> bool:
    """Apply the load until its pool has two pods and is within its target."""
    role = load.shape.pool
    print(
        f"==> {load.shape.name} load, more than one {role} pod can take, until there are two and latency is in target"
    )
    printer = Printer(watch)
    decisions_before = len(watch.decisions)
    two_since: float | None = None

    def done() -> bool:
        nonlocal two_since
        if two_since is None and watch.at(role, 2):
            load.pool_has_grown.set()
            two_since = time.monotonic()
        # By then the latency that the operator reports is that of two pods only.
        has_settled = two_since is not None and time.monotonic() - two_since > RECENT_SECONDS
        return has_settled and watch.rows[role].in_target is True

    with applied(load):
        grown = watch.wait(done, LOAD_SECONDS, printer.show)
        ended = time.monotonic()
    print_latency(load, two_since or ended, ended)
    others = [f"{d['from']} -> {d['to']}" for d in watch.decisions[decisions_before:] if d["role"] != role]
    print(f"    the other pool: {', '.join(others) or 'no change of size'}")
    return grown


def print_latency(load: ShapedLoad, two_since: float, ended: float) -> None:
    """With one pod and with two. Both moments are on the monotonic clock."""
    one = latency([o for o in load.outcomes if two_since - RECENT_SECONDS < o.ended <= two_since])
    two = latency([o for o in load.outcomes if ended - RECENT_SECONDS < o.ended <= ended])
    print(f"    {load.size}; {len(load.outcomes)} requests, {len(load.failed)} failed")
    print(f"    one {load.shape.pool} pod: {one}")
    print(f"    two pods: {two}")
