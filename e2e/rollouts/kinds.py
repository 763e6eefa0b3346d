"""The kinds of rollout: what is done to the service, from the first edit until nothing is under way any more.

Each begins with a service that is Ready, under load, and ends with one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from e2e import deploy
from e2e.rollouts.ground import NEXT_TAG, Ground, engine_pods, manifest, retagged
from phasewise_runtime import contract

REFUSED_DTYPE = "float7"
"""vLLM ends at once and says so; the CRD cannot know."""


@dataclass(frozen=True)
class Kind:
    name: str
    act: Callable[[Ground], object]
    replicas: int = 1
    """Of each pool."""
    copies: int = 2
    """Copies of the service that the budget holds."""
    nodes: int = 1

    @property
    def budget(self) -> int:
        return self.copies * self.replicas * len(contract.ENGINE_ROLES)


def other_cache(ground: Ground) -> None:
    ground.another_cache()
    ground.settle()


def same_cache(ground: Ground) -> None:
    ground.another_batch()
    ground.settle()


def turn_round(ground: Ground) -> None:
    """Back to the spec of before once the first new pod is ready."""
    before = ground.spec()
    ground.another_cache()
    ground.wait_for_pods(ground.revisions(), ready=True)
    ground.put_spec(before)
    ground.settle()


def second_edit(ground: Ground) -> None:
    """While the pods of the first edit start."""
    ground.another_cache()
    ground.wait_for_pods(ground.revisions(), ready=False)
    ground.another_cache()
    ground.settle()


def bad_then_fixed(ground: Ground) -> None:
    """The engine refuses an argument; the old revision serves until the fix is there."""
    before = ground.spec()
    ground.edit_args(dtype=REFUSED_DTYPE)
    ground.wait_for_stall("RolloutFailed")
    ground.put_spec(before)
    ground.another_cache()
    ground.settle()


def bad_and_back(ground: Ground) -> None:
    """The operator turns back by itself, and holds the bad revision at zero until the spec is mended."""
    before, revisions = ground.spec(), ground.revisions()
    ground.edit(rollout={"onFailure": "RollBack"}, engine={"args": {"dtype": REFUSED_DTYPE}})
    ground.wait_for_stall("RolledBack")
    ground.wait_for_pods(revisions, ready=True, every=True)
    ground.put_spec(before)
    ground.settle()


def another_name(ground: Ground) -> None:
    """Clients move to the new name while both are served."""
    ground.move_clients(ground.another_name())
    ground.settle()


def without_prefill(ground: Ground) -> None:
    ground.edit(prefill=None)
    ground.settle()


def with_prefill(ground: Ground) -> None:
    ground.edit(prefill=manifest(1, 4)["spec"]["prefill"])
    ground.settle()


def upgrade(ground: Ground) -> None:
    """Another operator and runtime: routers are replaced, engines are not."""
    before = {p["metadata"]["uid"] for p in engine_pods()}
    operator, runtime = (retagged(name) for name in ("operator", "runtime"))
    deploy.install(operator, runtime, NEXT_TAG)
    ground.settle()
    assert {p["metadata"]["uid"] for p in engine_pods()} == before, "an upgrade has replaced engine pods"


def refresh(ground: Ground) -> None:
    """The engines get the launcher of the newest runtime."""
    ground.refresh_engines()
    ground.settle()


def drain(ground: Ground) -> None:
    """The engines' node, with a pod of each pool on it, while another one has places."""
    nodes = {p["spec"]["nodeName"] for p in engine_pods()}
    assert len(nodes) == 1, f"the engines run on {nodes}"
    ground.drain(*nodes)
    ground.settle()


KINDS = {
    "cache": Kind("another KV cache", other_cache),
    "batch": Kind("the same KV cache", same_cache),
    "turn": Kind("turned round, a new pod ready", turn_round),
    "second": Kind("second edit in mid-rollout", second_edit),
    "bad": Kind("bad revision, then its fix", bad_then_fixed),
    "back": Kind("bad revision with RollBack", bad_and_back),
    "name": Kind("another `model.name`", another_name),
    "aggregated": Kind("P/D to aggregated", without_prefill),
    "pd": Kind("aggregated to P/D", with_prefill),
    "upgrade": Kind("`helm upgrade` of operator and runtime", upgrade),
    "refresh": Kind("engines refreshed after it", refresh),
    "drain": Kind("node drained, pools of one", drain, nodes=2),
    "drain-back": Kind("the other node drained", drain, nodes=2),
    "cache-1": Kind("another KV cache, budget of one copy", other_cache, replicas=2, copies=1),
    "batch-1": Kind("the same KV cache, budget of one copy", same_cache, replicas=2, copies=1),
    "second-1": Kind("second edit, budget of one copy", second_edit, replicas=2, copies=1),
}
