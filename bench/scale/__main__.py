"""`python -m bench.scale [SCENARIO [N]]`: the control plane comes up where it is not; without a scenario all are run.

`up` and `down` do only that. The machine should have nothing else to do: every figure comes with its load.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence

from bench.scale import control_plane, scenarios
from bench.scale.api import Api
from e2e.cluster.forward import enter_network

ORDER = (
    ("create", ()),
    ("replace", ()),
    ("busy", ()),
    ("restart", (scenarios.FEW,)),
    ("idle", ()),
    ("restart", ()),
    ("pods", ()),
)
EMPTY = ("create", "pods")
"""Scenarios that begin on a control plane without services."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    names = sorted({name for name, _ in ORDER})
    parser.add_argument("scenario", nargs="?", choices=["all", "up", "down", *names], default="all")
    parser.add_argument("number", nargs="?", type=int, help="of services or pods; for busy: seconds")
    options = parser.parse_args(arguments)
    selected = control_plane.selected()
    if options.scenario in ("up", "down"):
        getattr(selected, options.scenario)()
        return 0
    if options.scenario == "all":
        failed = [what for name, more in ORDER for what in run_apart(name, *map(str, more))]
        print(f"failed: {', '.join(failed)}" if failed else "all figures are within their limits")
        return 1 if failed else 0
    more = () if options.number is None else (options.number,)
    return 1 if run(selected, options.scenario, more) else 0


def run_apart(name: str, *more: str) -> list[str]:
    """In a process of its own: a process enters a network namespace once."""
    done = subprocess.run([sys.executable, "-m", "bench.scale", name, *more], check=False)
    return [" ".join((name, *more))] if done.returncode else []


def run(selected: control_plane.ScaleCluster, name: str, more: tuple[int, ...]) -> list[str]:
    if name in EMPTY:
        selected.down()
    selected.up()
    selected.operator_kubeconfig()
    with selected.network().open() as namespace:
        enter_network(namespace.fileno())
    print(f"{name} {' '.join(map(str, more))}: {scenarios.load()}", flush=True)
    return asyncio.run(_run(selected, name, more))


async def _run(selected: control_plane.ScaleCluster, name: str, more: tuple[int, ...]) -> list[str]:
    async with Api(selected.settings.pki) as api:
        bench = scenarios.Bench(selected, api)
        await getattr(scenarios, name)(bench, *more)
        print(f"  {scenarios.load()}", flush=True)
        return bench.failed


if __name__ == "__main__":
    sys.exit(main())
