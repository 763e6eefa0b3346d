"""What a rollout says of itself. Pure."""

from __future__ import annotations

from phasewise_operator.rollout.state import Service, State


def no_room(state: State, needed: int) -> str:
    serves = state.best_service(now=True) > Service.SERVED
    beside = "the last pods that serve" if serves else "the old revision, which has served and is not ready now"
    return (
        f"the GPU budget of {state.budget} has no room for {needed} GPUs of the new revision beside {beside}: "
        "raise scaling.gpuBudget, or set rollout.allowDowntime to let the old go first"
    )


def reason(state: State, old_before: bool) -> str:
    """What is under way; empty: nothing. `old_before`: there were replicas of old revisions before this step."""
    if not old_before:
        return _waiting(state)
    return "; ".join(text for text in (_under_way(state), _unproved(state)) if text)


def _unproved(state: State) -> str:
    pods = [f"{c.unproved} new {role} pods" for role, c in state.current.items() if c.unproved]
    text = "are ready and wait for the routers' proof that KV flows: the condition KVTransferReady says what they see"
    return f"{' and '.join(pods)} {text}" if pods and state.old else ""


def _under_way(state: State) -> str:
    if not state.old:
        served = state.service(state.new) is Service.FULL
        return "the last pods of the old revision go" if served else "the new revision replaces one that never served"
    if any(r.fingerprint == state.new for r in state.old) and not state.other_groups():
        return "pods of the new revision replace the old ones within the pools"
    if state.service(state.new) is Service.FULL:
        return "the new revision serves, and takes over from the old one as its pods get ready"
    if any(r.serving for r in state.old):
        return "the new revision comes up beside the old, which goes on serving until it is ready"
    return "the new revision comes up beside the old, which has served and is kept, but is not ready"


def _waiting(state: State) -> str:
    lacking = any(c.replicas < state.size[role] for role, c in state.current.items())
    return "the new revision waits for GPUs of the budget that terminating pods hold" if lacking else ""
