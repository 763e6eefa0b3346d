"""Chooses the pods of one request: waits for some that can take it, and for the first proof that KV flows."""

from __future__ import annotations

from phasewise_runtime.contract import DECODE, PREFILL
from phasewise_runtime.router.admission import no_engine
from phasewise_runtime.router.context import RouterContext
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.policy import KV_NOT_PROVED, Choice, choose, choose_decode
from phasewise_runtime.router.retry import RetryState
from phasewise_runtime.router.timing import now


async def choose_pods(context: RouterContext, retry: RetryState, decode_only: str | None) -> Choice:
    """Choose within `spec.hold`; ApiError where no decode pod took the request by then.

    Where nothing is proved yet, a request waits a moment rather than have its decode pod do the prefill.
    """
    pod_registry, hold = context.pod_registry, context.settings.hold_seconds
    until = now() + hold
    while True:
        choice = choose(
            pod_registry.candidates(PREFILL, retry.by_pod),
            pod_registry.candidates(DECODE, retry.by_pod),
            known=pod_registry.sizes,
            decode_only=decode_only,
            round_robin=next(context.round_robin),
        )
        wait = until - now()
        if choice is not None:
            unproved = choice.reason == KV_NOT_PROVED
            wait = min(wait, pod_registry.kv.proof_expected(choice.decode, now())) if unproved else 0.0
            if wait <= 0.0:
                return choice
        if not await pod_registry.changed(wait) and choice is None:
            raise no_engine(hold)


def other_decode(context: RouterContext, retry: RetryState, prefill: Pod) -> Pod | None:
    """Another decode pod for KV of `prefill` that no engine has seen yet."""
    candidates = context.pod_registry.candidates(DECODE, retry.by_pod)
    return choose_decode(candidates, prefill, round_robin=next(context.round_robin))
