"""A cluster as the rollout planner sees it: Deployments, their pods, nodes for so many GPUs.

Each `plan` checks what must hold of every step; `settle` what must hold in the end.
"""

from __future__ import annotations

from random import Random

from tests.operator.failing_rollouts import check_fallback, next_rollout
from tests.operator.rollout_objects import Deployment, Key, Pod, Version

from phasewise_operator.revisions import RunningRevision
from phasewise_operator.rollout import DesiredRevision, Rollout
from phasewise_operator.rollout.failure import combined

SETTLED_STEPS = 400


class Cluster:
    def __init__(self, version: Version, size: dict[str, int]) -> None:
        self.version, self.size = version, size
        self.budget: int | None = None
        self.capacity = 10**6
        self.allow_downtime = False
        self.proving = False
        """Whether the routers are of a version that proves pods."""
        self.roll_back = False
        self.deadline: int | None = None
        """Steps in which new pods must get ready."""
        self.condemned = False
        """The next step finds that the version is bad, whatever its pods do."""
        self.deployments: dict[Key, Deployment] = {}
        self.left: list[tuple[Deployment, Pod]] = []
        """Pods of Deployments that are gone."""
        self.steps = 0
        self.rollout: Rollout | None = None

    # --- what is measured ---
    def desired(self) -> list[DesiredRevision]:
        v = self.version
        return [DesiredRevision(r, v.revisions[r], v.fingerprint, self.size[r], v.gpus[r]) for r in v.revisions]

    def running(self) -> list[RunningRevision]:
        found = {key: self._running(d, d.pods) for key, d in self.deployments.items()}
        for key in {d.key for d, _ in self.left} - found.keys():
            gone = [(d, p) for d, p in self.left if d.key == key]
            found[key] = RunningRevision(
                *key, gone[0][0].fingerprint, 0, 0, len(gone), gone[0][1].gpus, False, terminating=len(gone)
            )
        return list(found.values())

    def _running(self, d: Deployment, pods: list[Pod]) -> RunningRevision:
        going = sum(p.terminating for p in pods) + sum(of.key == d.key for of, _ in self.left)
        proving = self.asks_for_proof and len(d.roles) == 2
        return RunningRevision(
            *d.key, d.fingerprint, d.replicas, d.ready, len(d.staying) + going, d.gpus, d.served,
            available=sum(p.available for p in d.staying), terminating=going,
            surge=d.surge if d.outdated else 0,
            unschedulable=sum(not p.scheduled for p in d.staying),
            aggregated=len(d.roles) == 1, leaving=d.leaving, planned=d.planned,
            leaving_proved=sum(p.ready and p.cordoned and (p.proved or not proving) for p in d.staying),
            proved=d.proved if proving else None,
        )  # fmt: skip

    @property
    def asks_for_proof(self) -> bool:
        return self.proving and len(self.size) == 2 and all(self.size.values())

    def gpus_held(self) -> int:
        """Of all pods, and of replicas that are no pods yet."""
        asked = sum(max(0, d.replicas - len(d.staying)) * d.gpus for d in self.deployments.values())
        return asked + self.pod_gpus()

    def pod_gpus(self) -> int:
        return sum(p.gpus for _, p in self._pods())

    def _pods(self) -> list[tuple[Deployment, Pod]]:
        return [*((d, p) for d in self.deployments.values() for p in d.pods), *self.left]

    def service(self, trusted: bool = False) -> int:
        """What requests find: 2, ready pods of each pool that is to have some, of one group; 1, ready decode pods.
        `trusted`: of the current version's pods only those that have handed KV over."""
        groups: dict[str, dict[str, int]] = {}
        for d in self.deployments.values():
            ready = groups.setdefault(d.fingerprint, {role: 0 for role in d.roles if self.size.get(role, 1)})
            asked = trusted and self.asked_for(d) and self._has_peers(d)
            if d.key[0] in ready:
                ready[d.key[0]] += sum(p.ready and (p.proved or not asked) for p in d.staying)
        if any(ready and all(ready.values()) for ready in groups.values()):
            return 2
        return int(any(ready.get("decode") for ready in groups.values()))

    def _has_peers(self, deployment: Deployment) -> bool:
        """Whether there is a pod that it could hand KV to, or get it from."""
        others = (d for d in self.deployments.values() if d.fingerprint == deployment.fingerprint)
        return any(d.ready for d in others if d.key[0] != deployment.key[0])

    def asked_for(self, deployment: Deployment) -> bool:
        """Whether the spec asks for its revision."""
        role, revision = deployment.key
        return self.version.revisions.get(role) == revision

    def serving(self, role: str) -> int:
        return sum(d.ready for d in self.deployments.values() if d.key[0] == role)

    # --- what the operator does ---
    def plan(self) -> Rollout:
        service, trusted, held = self.service(), self.service(trusted=True), self.gpus_held()
        serving = {role: self.serving(role) for role in self.size}
        neutral = {d.fingerprint for d in self.deployments.values()} == {self.version.fingerprint}
        rollout = next_rollout(self)
        self._apply(rollout)
        self.steps += 1
        self.rollout = rollout
        if self.budget is not None:
            assert self.gpus_held() <= max(held, self.budget), "(b) a step raised the GPUs held above the budget"
        if self.size["decode"] and not self.allow_downtime:
            assert self.service() >= service, "(a), (c) a step took the last pods that serve"
            if self.asks_for_proof:
                least = "a step took the last pods that serve for some that hand no KV over"
                assert self.service(trusted=True) >= trusted, least
            if service == 2 and neutral:
                most = max(self.version.gpus.values())
                for role, before in serving.items():
                    given = -(-most // self.version.gpus[role])
                    assert self.serving(role) >= min(before, self.size[role]) - given, "(e) more than one replica takes"
        return rollout

    def _apply(self, rollout: Rollout) -> None:
        v = self.version
        for role, revision in v.revisions.items():
            made = Deployment((role, revision), v.fingerprint, v.gpus[role], frozenset(v.revisions), v.good, v.flows)
            self.deployments.setdefault((role, revision), made)
        sizes = {**rollout.old, **{(role, v.revisions[role]): n for role, n in rollout.current.items()}}
        for key, deployment in list(self.deployments.items()):
            deployment.served |= key in rollout.serving
            role, revision = key
            new = self.asked_for(deployment)
            if new:  # the rolling update of an old one is left as it is
                deployment.surge = int(rollout.surge)
            deployment.planned = rollout.fallback.get(role) == revision if rollout.fallback else new
            deployment.failed = combined(self.desired()) if rollout.fallback and new and not deployment.planned else ""
            if key in sizes:
                if deployment.replicas > sizes[key]:
                    deployment.delete_pods(len(deployment.staying) - sizes[key])
                deployment.replicas = sizes[key]
            else:
                deployment.delete_pods(len(deployment.pods))
                self.left += [(deployment, p) for p in deployment.pods]
                del self.deployments[key]

    # --- what goes on by itself ---
    def advance(self, random: Random, share: float = 0.5) -> None:
        """Each thing that can happen next does, with this probability."""
        held = max(self.gpus_held(), self.budget or 0)
        for d in self.deployments.values():
            self._control(d, random, share)
            d.unready = 0 if d.served or d.ready or not d.staying else d.unready + 1
        if self.budget is not None:
            replaced = sum(p.gpus for d, p in self._pods() if p.terminating and d.template)
            left = sum(d.gpus for d in self.deployments.values() if d.surge and d.outdated and not self.asked_for(d))
            assert self.pod_gpus() - replaced - left <= held, "(b) Deployments made more pods than the budget holds"
        for d, pod in self._pods():
            if random.random() < share:
                self._live(d, pod)

    def _control(self, d: Deployment, random: Random, share: float) -> None:
        """The Deployment controller: a rolling update, and as many pods as replicas."""
        d.delete_pods(len(d.staying) - d.replicas - d.surge)
        missing = d.replicas - len(d.staying)
        for _ in range(missing):
            if random.random() < share:
                d.pods.append(Pod(d.gpus, d.template))
        if d.outdated and random.random() < share:
            if d.surge and len(d.staying) <= d.replicas:
                d.pods.append(Pod(d.gpus, d.template))
            elif not d.surge or not d.outdated[0].ready or sum(p.available for p in d.staying) > d.replicas:
                d.outdated[0].stop()
        elif not d.outdated:
            d.delete_pods(len(d.staying) - d.replicas)

    def _live(self, d: Deployment, pod: Pod) -> None:
        if pod.terminating:
            if (d, pod) in self.left:
                self.left.remove((d, pod))
            else:
                d.pods.remove(pod)
        elif not pod.scheduled:
            used = sum(p.gpus for _, p in self._pods() if p.scheduled)
            pod.scheduled = used + pod.gpus <= self.capacity
        elif pod.available:
            pod.proved |= d.flows and any(
                p.ready for other, p in self._pods() if other.fingerprint == d.fingerprint and other.key[0] != d.key[0]
            )
        elif pod.ready:
            pod.available = True
        elif d.good:
            pod.ready = True

    def flap(self, random: Random, share: float) -> None:
        """Pods are not ready for a moment."""
        for _, pod in self._pods():
            if random.random() < share:
                pod.ready = pod.available = False
                pod.proved &= random.random() < 0.5

    def kill(self, random: Random) -> None:
        """A node is drained, or a pod is evicted."""
        deployments = [d for d in self.deployments.values() if d.staying]
        if deployments:
            deployment = random.choice(deployments)
            random.choice(deployment.staying).stop()

    def drain(self, random: Random, share: float) -> None:
        """Nodes with this share of the pods take no new ones."""
        for _, pod in self._pods():
            pod.cordoned |= pod.scheduled and random.random() < share

    def upgrade(self) -> None:
        """The operator brings another launcher: the templates of the current revisions change."""
        for role, revision in self.version.revisions.items():
            if (role, revision) in self.deployments:
                self.deployments[role, revision].template += 1

    # --- in the end ---
    def settle(self) -> None:
        """Nothing happens any more but what the operator and Deployments do. Then the rollout is at its end, or it says
        why it is not."""
        random = Random(0)
        for _ in range(SETTLED_STEPS):
            before = self._shape()
            rollout = self.plan()
            for _ in range(5):
                self.advance(random, 1.0)
            if self._shape() == before:
                break
        else:
            raise AssertionError("(d) the rollout never comes to rest")
        if rollout.fallback:
            check_fallback(self, rollout)
            return
        if not self.version.good or (self.asks_for_proof and not self.version.flows):
            return
        if self.is_complete():
            alone = [r for r in self.running() if self.size.get(r.role) == 1 and r.leaving]
            assert self.allow_downtime or not alone or rollout.blocked, "(e) a drain waits and nothing is done or said"
            return
        assert rollout.blocked, f"(d) it rests, not complete, and does not say so: {self.running()} {rollout}"
        assert not self.fits(), f"(d) it is blocked where two pairs fit: {self.running()} {rollout}"

    def _shape(self) -> object:
        return self.running(), [vars(p).copy() for _, p in self._pods()]

    def is_complete(self) -> bool:
        desired = {(role, revision): self.size[role] for role, revision in self.version.revisions.items()}
        return {key: d.ready for key, d in self.deployments.items()} == desired

    def fits(self) -> bool:
        """Whether an old and a new pair fit side by side."""
        if self.allow_downtime:
            return True
        old = [d for key, d in self.deployments.items() if self.version.revisions.get(key[0]) != key[1]]
        groups = {d.fingerprint for d in old}
        pair = sum(gpus for role, gpus in self.version.gpus.items() if self.size[role])
        kept = [d for d in old if self.size.get(d.key[0], 1)]
        held = max((sum({d.key[0]: d.gpus for d in kept if d.fingerprint == f}.values()) for f in groups), default=0)
        return self.budget is None or pair + held <= self.budget
