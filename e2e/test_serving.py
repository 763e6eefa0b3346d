"""A real service answers as its engine alone would, with every long prompt's KV cache handed over."""

from __future__ import annotations

import httpx
import openai
import pytest

from e2e import kube
from e2e.alone import differences
from e2e.conftest import Service
from e2e.load import CHAT, make_request, send_all
from phasewise_runtime import contract

LENGTHS = (10, 40, 130, 300, 517, 800, 1000, 1234, 1400, 1500)


def engines(service: Service, role: str) -> list[dict[str, float]]:
    return [
        kube.engine_metrics(p["metadata"]["name"], service.namespace)
        for p in kube.pods(service.name, role, service.namespace)
    ]


def block_size(samples: dict[str, float]) -> int:
    info = next(name for name in samples if name.startswith("vllm:cache_config_info"))
    return int(info.split('block_size="')[1].split('"')[0])


def test_the_service_says_that_it_is_ready_and_where(service: Service) -> None:
    live = service.wait_ready()
    types = ("Ready", "ModelReady", "PrefillReady", "DecodeReady", "RouterReady")
    assert {t: kube.condition(live, t)[0] for t in types} == dict.fromkeys(types, "True")
    assert live["status"]["url"] == f"http://{service.name}.{service.namespace}.svc"
    assert live["status"]["prefill"]["summary"] == "2/2"


def test_forty_mixed_requests_are_token_identical_and_every_long_prompt_is_transferred(
    service: Service, engine_alone: str
) -> None:
    before = kube.tokens_over_kv(service.name, service.namespace)
    size = block_size(engines(service, contract.DECODE)[0])
    requests = [
        make_request(service.model, 1000 + i, LENGTHS[i % 10], chat=i % 4 < 2, stream=i % 2 == 0) for i in range(40)
    ]
    outcomes = send_all(service.url, requests, at_once=40)
    assert [o.answer.error for o in outcomes if o.answer.error] == []
    assert {o.answer.finish_reason for o in outcomes} == {"length"}
    assert all(o.answer.usage["completion_tokens"] == 24 for o in outcomes)
    blocks = sum(o.answer.usage["prompt_tokens"] // size * size for o in outcomes)
    moved = kube.tokens_over_kv(service.name, service.namespace) - before
    assert blocks > 10_000
    assert moved >= blocks, f"{moved:.0f} prompt tokens came over KV transfer, of {blocks} in full blocks"
    for role in contract.ENGINE_ROLES:
        assert sum(kube.total(m, "vllm:nixl_num_failed_transfers_total") for m in engines(service, role)) == 0
    assert differences(outcomes, engine_alone) == []


def test_the_official_client_streams(service: Service) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none")
    assert [m.id for m in client.models.list()] == [service.model]
    stream = client.chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": "stream, please"}],
        max_tokens=8,
        temperature=0,
        stream=True,
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(text) == 8
    assert chunks[-1].choices[0].finish_reason == "length"


BAD: list[tuple[str, object, int, str]] = [
    (CHAT, b"{not json", 400, "JSON"),
    (CHAT, {"model": "other", "messages": []}, 404, "other"),
    (CHAT, {"model": "tiny"}, 400, "messages"),
    (CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 8}, 400, "2048"),
    ("/v1/embeddings", {"model": "tiny", "input": "x"}, 404, "/v1/chat/completions"),
]


@pytest.mark.parametrize(("path", "body", "status", "word"), BAD)
def test_bad_requests_get_a_clear_error_in_openais_shape(
    path: str, body: object, status: int, word: str, service: Service
) -> None:
    if isinstance(body, bytes):
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{service.url}{path}", content=body, headers=headers, timeout=60)
    else:
        answer = httpx.post(f"{service.url}{path}", json=body, timeout=60)
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]


def test_time_to_first_token_is_told_in_its_parts(service: Service) -> None:
    request = make_request(service.model, 77, 600, chat=True, stream=True)
    (outcome,) = send_all(service.url, [request], 1)
    assert {"queue", "prefill", "decode"} <= set(outcome.answer.timing)
    assert outcome.answer.ttft is not None
    told = sum(outcome.answer.timing[part] for part in ("queue", "prefill", "decode")) / 1000
    assert told == pytest.approx(outcome.answer.ttft, abs=0.25)
