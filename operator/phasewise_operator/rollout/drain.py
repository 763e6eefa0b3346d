"""A pool of one whose pod is on a node that is drained: its successor comes first. Pure.

Its PodDisruptionBudget lets no pod of such a pool be evicted (render/children.py), so a drain waits until the pod has
gone by itself: the Deployment gets one replica more, and when that is ready it shrinks again, by the pod on the node.
"""

from __future__ import annotations

from collections.abc import Mapping

from phasewise_operator.rollout.state import Revision, State


def add_successors(state: State, before: Mapping[str, int]) -> tuple[str, str]:
    """What is under way, and why a pod gets no successor; both may be empty. Beside a rollout nothing is done.
    `before`: replicas of the current revisions as they are, by role: one that came first stays until it serves."""
    waiting = [
        role for role, current in state.current.items() if state.size[role] == 1 and _is_due(current, before[role] > 1)
    ]
    if state.old or not waiting:
        return "", ""
    for role in waiting:
        current = state.current[role]
        cost = current.gpus if current.replicas >= current.live else 0
        if cost > max(0, state.gpus_free()):
            return "", (
                f"the only {role} pod is on a node that is drained, and the GPU budget of {state.budget} has no room "
                "for its successor, so the drain waits: raise scaling.gpuBudget, or set rollout.allowDowntime to let "
                "the pod go first"
            )
        current.replicas += 1
    return f"the only pod of {' and '.join(waiting)} is on a node that is drained, and its successor comes first", ""


def _is_due(current: Revision, under_way: bool) -> bool:
    """Of several pods on such nodes all but one go first, since the next would be one more than the pool may have. A
    rolling update of the Deployment replaces the pod by itself. A pod that hands no KV over, as on a bad node, is not
    its own successor."""
    staying = current.ready - current.leaving_proved
    return current.leaving == 1 and staying < 1 and current.replicas == 1 and (under_way or not current.surge)
