"""Where prefill and decode count different prompts, the KV is of another prompt: that is seen, and mended in time."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.runtime.router.conftest import RouterFactory
from tests.runtime.router.fake_engine import pair
from tests.runtime.router.faults import complete

BEFORE_THE_CLIENT_SEES_ANYTHING: dict[str, dict[str, Any]] = {
    "assembled": {},
    "passed through": {"logprobs": True},
    "stream whose client asks for counts": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}


@pytest.mark.parametrize("fields", BEFORE_THE_CLIENT_SEES_ANYTHING.values(), ids=BEFORE_THE_CLIENT_SEES_ANYTHING)
async def test_the_answer_comes_from_the_decode_pod_only(
    router: RouterFactory, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    p, d = pair(prompt_tokens=9)
    async with router(p, d) as r:
        assert complete(await r.chat(**fields))
        assert r.metric("prompt_token_mismatches_total", fingerprint="fp") == 1
        assert r.metric("decode_only_total", reason="prompt_mismatch") == 1
        assert r.metric("ejections_total") == 0
    assert ["kv_transfer_params" in body for body in d.bodies] == [True, False]
    (said,) = [rec for rec in caplog.records if rec.levelno == logging.ERROR]
    assert (said.__dict__["prefill_tokens"], said.__dict__["decode_tokens"]) == (7, 9)


async def test_a_stream_that_ends_with_another_count_is_counted(router: RouterFactory) -> None:
    p, d = pair(prompt_tokens=9, gap=0.02)
    async with router(p, d) as r:
        assert complete(await r.chat(stream=True))
        assert r.metric("prompt_token_mismatches_total", fingerprint="fp") == 1
    assert len(d.requests) == 1


@pytest.mark.parametrize("fields", [*BEFORE_THE_CLIENT_SEES_ANYTHING.values(), {"stream": True}, {"n": 2}])
async def test_equal_counts_are_no_fault(router: RouterFactory, fields: dict[str, Any]) -> None:
    p, d = pair()
    async with router(p, d) as r:
        assert (await r.chat(**fields)).status == 200
        assert r.metric("prompt_token_mismatches_total") == 0
    assert len(d.requests) == 1
