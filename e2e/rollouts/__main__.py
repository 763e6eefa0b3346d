"""`make rollouts`, or some kinds of them: python -m e2e.rollouts [KIND...]; some 40 minutes on two cores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from e2e import cluster, service
from e2e.cluster import ClusterError
from e2e.cluster.progress import step
from e2e.cluster.settings import NODE_NAME
from e2e.deploy import bring_up, stop_demo
from e2e.images import ImageError
from e2e.reference import Reference
from e2e.rollouts.ground import NAME, NAMESPACE, SLOTS, manifest, set_slots
from e2e.rollouts.kinds import KINDS, Kind
from e2e.rollouts.play import HEAD, Result, first_answers, play
from e2e.service import Service


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.rollouts", description=__doc__)
    parser.add_argument("kind", nargs="*", choices=[[], *KINDS], help="all of them where none is named")
    parser.add_argument("--keep", action="store_true", help="leave the service at the end")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    try:
        bring_up()
        stop_demo()
        set_slots(NODE_NAME, SLOTS)
        play_all([KINDS[name] for name in options.kind or KINDS], results)
    except (ClusterError, ImageError, AssertionError) as error:
        print(f"rollouts: {error}", file=sys.stderr)
        return 1
    finally:
        print("\n".join([HEAD, *(result.row for result in results)]), flush=True)
    if not options.keep:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=300s")
    return 1 if any(result.faults for result in results) else 0


def play_all(kinds: Sequence[Kind], results: list[Result]) -> None:
    found: Service | None = None
    reference: Reference | None = None
    for n, kind in enumerate(kinds):
        if found is None or (kind.replicas, kind.budget) != (kinds[n - 1].replicas, kinds[n - 1].budget):
            found = serve(kind.replicas, kind.budget)
        reference = reference or first_answers(found)
        use_nodes(kind.nodes)
        with step(f"{kind.name}, under load"):
            result = play(kind, found, reference)
            results.append(result)
            print(f"    {result.row}")
            for fault in result.faults[:20]:
                print(f"    fault: {fault}")


def use_nodes(count: int) -> None:
    """A second node with as many places as the first, for kinds that need one."""
    if count > 1:
        with step("a second node"):
            set_slots(cluster.selected().add_node(), SLOTS)
    else:
        cluster.selected().remove_node()


def serve(replicas: int, budget: int) -> Service:
    made = manifest(replicas, budget)
    with step(f"service {NAME}: {replicas} pods a pool under a budget of {budget}"):
        service.apply(made)
        return Service.when_ready(made)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
