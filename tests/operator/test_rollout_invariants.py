"""What holds of every step of a rollout, whatever happens: random edits, failures, budgets and capacities.

`PHASEWISE_ROLLOUT_EXAMPLES` sets the number of histories; 900 of them are more than 100,000 steps of the planner.
"""

from __future__ import annotations

import os
from random import Random

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.operator.rollout_objects import Version
from tests.operator.rollout_simulator import Cluster

EXAMPLES = int(os.environ.get("PHASEWISE_ROLLOUT_EXAMPLES", "900"))
seeds = st.integers(0, 2**32 - 1)
pool = st.sampled_from((0, 0, 1, 1, 2, 3, 4, 6))
sizes = st.tuples(pool, pool)
"""Of prefill and decode: an autoscaler may set either to zero, and a service without requests has both there."""
PAIR: tuple[str, str] = ("prefill", "decode")


class Rollouts(RuleBasedStateMachine):
    cluster: Cluster
    versions: list[Version]

    @initialize(size=sizes, gpus=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=seeds)
    def begin(self, size: tuple[int, int], gpus: tuple[int, int], seed: int) -> None:
        self.versions = []
        version = self.new_version(dict(zip(PAIR, gpus, strict=True)))
        self.cluster = Cluster(version, dict(zip(PAIR, size, strict=True)))
        self.random = Random(seed)
        self.go_on(6)

    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.plan()
            self.cluster.advance(self.random)

    def adopt(self, version: Version) -> None:
        self.cluster.version = version
        self.cluster.size = {role: self.cluster.size.get(role, 2) for role in version.revisions}
        self.limit()
        self.go_on(self.random.randint(0, 12))

    def limit(self) -> None:
        """As pool_sizes does: the sizes of the pools fit the budget."""
        cluster = self.cluster
        gpus, size = cluster.version.gpus, cluster.size
        if cluster.budget is None:
            return
        cluster.budget = max(cluster.budget, sum(gpus[r] for r in size))
        while sum(gpus[r] * n for r, n in size.items()) > cluster.budget:
            size[max(size, key=lambda r: size[r])] -= 1

    @rule(good=st.booleans(), flows=st.booleans(), gpus=st.tuples(st.integers(1, 4), st.integers(1, 4)))
    def edit(self, good: bool, flows: bool, gpus: tuple[int, int]) -> None:
        """A change that makes new KV."""
        self.adopt(self.new_version(dict(zip(PAIR, gpus, strict=True)), good, flows))

    def new_version(self, gpus: dict[str, int], good: bool = True, flows: bool = True) -> Version:
        """With pods of a revision and a fingerprint that no other has. `gpus`: by role."""
        n = len(self.versions)
        self.versions.append(Version(dict.fromkeys(gpus, f"r{n}"), f"kv{n}", gpus, good, flows))
        return self.versions[-1]

    @rule(roles=st.sampled_from([("prefill",), ("decode",), PAIR]), good=st.booleans())
    def edit_neutral(self, roles: tuple[str, ...], good: bool) -> None:
        """A change that keeps the fingerprint."""
        old, n = self.cluster.version, len(self.versions)
        revisions = {r: f"r{n}" if r in roles else old.revisions[r] for r in old.revisions}
        if revisions != old.revisions and (good or set(roles) >= set(revisions)) and old.good:
            self.versions.append(Version(revisions, old.fingerprint, old.gpus, good, old.flows))
            self.adopt(self.versions[-1])

    @rule()
    def toggle_prefill(self) -> None:
        gpus = self.cluster.version.gpus
        roles = ("decode",) if "prefill" in gpus else PAIR
        self.adopt(self.new_version(dict.fromkeys(roles, gpus["decode"])))

    @rule(seed=seeds)
    def turn_round(self, seed: int) -> None:
        self.adopt(self.versions[seed % len(self.versions)])

    @rule(size=sizes)
    def scale(self, size: tuple[int, int]) -> None:
        self.cluster.size = {role: n for role, n in zip(PAIR, size, strict=True) if role in self.cluster.size}
        self.limit()
        self.go_on(4)

    @rule(spare=st.none() | st.integers(0, 12))
    def set_budget(self, spare: int | None) -> None:
        cluster = self.cluster
        asked = sum(cluster.version.gpus[r] * n for r, n in cluster.size.items())
        cluster.budget = None if spare is None else asked + spare
        self.go_on(4)

    @rule(factor=st.floats(0.3, 2))
    def lower_budget(self, factor: float) -> None:
        cluster = self.cluster
        if cluster.budget is not None:
            cluster.budget = int(cluster.budget * factor)
            self.limit()
            self.go_on(4)

    @rule(spare=st.integers(0, 12))
    def set_capacity(self, spare: int) -> None:
        cluster = self.cluster
        cluster.capacity = cluster.pod_gpus() + spare
        self.go_on(6)
        cluster.capacity = 10**6

    @rule(share=st.floats(0, 1))
    def flap(self, share: float) -> None:
        self.cluster.flap(self.random, share)
        self.go_on(3)

    @rule()
    def kill(self) -> None:
        self.cluster.kill(self.random)
        self.go_on(3)

    @rule(proving=st.booleans())
    def replace_routers(self, proving: bool) -> None:
        """By a version that proves pods, or by one that does not."""
        self.cluster.proving = proving
        self.go_on(3)

    @rule(share=st.floats(0, 1))
    def lose_proofs(self, share: float) -> None:
        """Handing KV over fails for a while."""
        for deployment in self.cluster.deployments.values():
            for pod in deployment.pods:
                pod.proved &= self.random.random() >= share
        self.go_on(3)

    @rule(share=st.floats(0, 1))
    def drain(self, share: float) -> None:
        self.cluster.drain(self.random, share)
        self.go_on(8)

    @rule()
    def upgrade(self) -> None:
        self.cluster.upgrade()
        self.go_on(5)

    @rule()
    def lose_annotations(self) -> None:
        for deployment in self.cluster.deployments.values():
            deployment.served, deployment.failed = False, ""
        self.go_on(3)

    @rule(kv_neutral=st.booleans(), good=st.booleans(), roll_back=st.booleans(), rounds=st.integers(0, 20))
    def edit_that_fails(self, kv_neutral: bool, good: bool, roll_back: bool, rounds: int) -> None:
        """It does badly in whatever way: its pods may serve (`good`)."""
        cluster = self.cluster
        if kv_neutral:
            self.edit_neutral(tuple(cluster.version.revisions), good)
        else:
            self.edit(good, True, (cluster.version.gpus.get("prefill", 1), cluster.version.gpus["decode"]))
        self.go_on(rounds)
        cluster.roll_back, cluster.condemned = roll_back, True
        cluster.plan()
        cluster.condemned = False
        self.go_on(6)

    @rule(roll_back=st.booleans(), deadline=st.none() | st.integers(5, 20))
    def set_on_failure(self, roll_back: bool, deadline: int | None) -> None:
        self.cluster.roll_back, self.cluster.deadline = roll_back, deadline
        self.go_on(4)

    @rule(rounds=st.integers(1, 40))
    def wait(self, rounds: int) -> None:
        self.go_on(rounds)

    @rule()
    def settle(self) -> None:
        self.cluster.settle()

    @rule()
    def settle_with_downtime(self) -> None:
        self.cluster.allow_downtime = True
        self.cluster.settle()
        self.cluster.allow_downtime = False

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.settle()
            Rollouts.steps += self.cluster.steps

    steps = 0


class TestRollouts(Rollouts.TestCase):
    settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=25,
        deadline=None,
        phases=[Phase.reuse, Phase.generate],  # to shrink a history takes minutes, and it is readable as it is
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
