"""A real service answers as its engine does by itself, with the KV cache of every long prompt transferred."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import httpx
import openai
import pytest

from e2e import cluster, kube
from e2e.images import ROOT
from e2e.load import CHAT, make_request, send_all
from e2e.reference import Reference
from e2e.service import Service
from phasewise_runtime import contract

PARSER = ROOT / "tests" / "runtime" / "engine" / "parse_arguments.py"
LENGTHS = (10, 40, 130, 300, 517, 800, 1000, 1234, 1400, 1500)


def engines(chat: Service, role: str) -> list[dict[str, float]]:
    return [kube.engine_metrics(pod["metadata"]["name"], chat.namespace) for pod in chat.pods(role)]


def block_size(samples: dict[str, float]) -> int:
    info = next(name for name in samples if name.startswith("vllm:cache_config_info"))
    return int(info.split('block_size="')[1].split('"')[0])


def test_status_has_the_conditions_and_the_url(chat: Service) -> None:
    live = chat.wait_ready()
    types = ("Ready", "ModelReady", "PrefillReady", "DecodeReady", "RouterReady")
    assert {t: kube.condition(live, t)[0] for t in types} == dict.fromkeys(types, "True")
    assert live["status"]["url"] == f"http://{chat.name}.{chat.namespace}.svc"
    assert live["status"]["prefill"]["summary"] == "2/2"


def test_forty_mixed_requests_are_token_identical_and_every_long_prompt_is_transferred(
    chat: Service, reference: Reference
) -> None:
    before = kube.tokens_over_kv(chat.name, chat.namespace)
    size = block_size(engines(chat, contract.DECODE)[0])
    requests = [
        make_request(chat.model, 1000 + i, LENGTHS[i % 10], chat=i % 4 < 2, stream=i % 2 == 0) for i in range(40)
    ]
    outcomes = send_all(chat.url, requests, at_once=40)
    assert [o.answer.error for o in outcomes if o.answer.error] == []
    assert {o.answer.finish_reason for o in outcomes} == {"length"}
    assert all(o.answer.usage["completion_tokens"] == 24 for o in outcomes)
    blocks = sum(o.answer.usage["prompt_tokens"] // size * size for o in outcomes)
    moved = kube.tokens_over_kv(chat.name, chat.namespace) - before
    assert blocks > 10_000
    assert moved >= blocks, f"{moved:.0f} prompt tokens came by KV transfer, of {blocks} in full blocks"
    for role in contract.ENGINE_ROLES:
        assert sum(kube.total(m, "vllm:nixl_num_failed_transfers_total") for m in engines(chat, role)) == 0
    assert reference.differences(outcomes) == []


def test_the_official_client_streams(chat: Service) -> None:
    client = openai.OpenAI(base_url=f"{chat.url}/v1", api_key="none")
    assert [m.id for m in client.models.list()] == [chat.model]
    stream = client.chat.completions.create(
        model=chat.model,
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
    path: str, body: object, status: int, word: str, chat: Service
) -> None:
    if isinstance(body, bytes):
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{chat.url}{path}", content=body, headers=headers, timeout=60)
    else:
        answer = httpx.post(f"{chat.url}{path}", json=body, timeout=60)
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]


def test_server_timing_has_the_parts_of_ttft(chat: Service) -> None:
    request = make_request(chat.model, 77, 600, chat=True, stream=True)
    (outcome,) = send_all(chat.url, [request], 1)
    assert {"queue", "prefill", "decode"} <= set(outcome.answer.timing)
    assert outcome.answer.ttft is not None
    reported = sum(outcome.answer.timing[part] for part in ("queue", "prefill", "decode")) / 1000
    assert reported == pytest.approx(outcome.answer.ttft, abs=0.25)


def golden_commands() -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}
    command = [sys.executable, "-m", "tests.runtime.engine.golden"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def parse_in_engine_image(chat: Service, commands: str) -> str:
    pod = chat.pods(contract.DECODE)[0]["metadata"]["name"]
    where = ("-n", chat.namespace, "exec", "-i", pod, "-c", "engine", "--")
    return cluster.kubectl(*where, "python3", "-c", PARSER.read_text(), text=commands)


def test_vllm_accepts_every_golden_command_and_refuses_an_unknown_argument(chat: Service) -> None:
    commands = json.loads(golden_commands())
    assert len(commands) > 8
    assert f"{len(commands)} commands parsed" in parse_in_engine_image(chat, json.dumps(commands))
    with pytest.raises(cluster.ClusterError, match="vLLM refuses"):
        parse_in_engine_image(chat, json.dumps([[*commands[0], "--no-such-argument"]]))
