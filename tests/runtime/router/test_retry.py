"""What a request does after failures."""

from __future__ import annotations

from phasewise_runtime.contract import DECODE
from phasewise_runtime.router.engine_client import KV_PATH_FAILED, EngineError
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.policy import KV_FAILED
from phasewise_runtime.router.retry import RetryState

D0 = Pod("d0", "d0", DECODE, "10.0.0.2", "fp", ready=True)


def test_a_request_that_waited_on_paths_that_failed_goes_on_without_kv() -> None:
    """With three prefill pods, the decode pod whose connector is dead makes three paths fail, one after the other."""
    retry = RetryState()
    for expected in (None, KV_FAILED, KV_FAILED):
        failure = EngineError(D0, KV_PATH_FAILED, "", blame=False)
        retry.record(failure)
        assert not retry.is_final(failure)
        assert retry.decode_only() == expected
    assert retry.by_pod[D0.uid] == 3, "another decode pod comes first"
