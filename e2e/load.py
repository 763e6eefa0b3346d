"""Requests to a service while something is done to it, and what clients saw of it.

A load has few prompts and sends them again and again, each time with another `cache_salt`: no cache makes a prefill
needless, and every answer can be compared with what the reference engine answered once to the same prompt
(reference.py).
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import threading
import time
import uuid
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e import client, cluster, kube
from e2e.cluster.progress import wait_for
from phasewise_runtime import contract

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MIXED_PROMPTS = 16
WORDS = ("cache", "is", "filled", "in", "one", "pass", "and", "read", "token", "by", "while", "prompts", "wait")


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]


@dataclass
class Outcome:
    request: Request
    answer: client.Answer
    began: float = 0.0
    """On the monotonic clock, as `ended`."""
    ended: float = 0.0


def prompt(tokens: int, seed: int) -> str:
    """As many characters as tokens: the tiny model's tokenizer takes a byte for a token."""
    rng = random.Random(seed)
    text = f"{seed:08x} " + " ".join(rng.choices(WORDS, k=tokens))
    return text[:tokens]


def make_request(model: str, seed: int, tokens: int, *, chat: bool, stream: bool, output: int = 24) -> Request:
    body: dict[str, Any] = {"model": model, "max_tokens": output, "temperature": 0, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if chat:
        return Request(CHAT, {**body, "messages": [{"role": "user", "content": prompt(tokens, seed)}]})
    return Request(COMPLETIONS, {**body, "prompt": prompt(tokens, seed)})


def mixed_requests(model: str, longest: int) -> list[Request]:
    """Chat and plain completions, streamed and not; prompts of 100 to `longest` tokens, 32 tokens to answer."""
    lengths = [100 + n * (longest - 100) // (MIXED_PROMPTS - 1) for n in range(MIXED_PROMPTS)]
    kinds = itertools.cycle([(True, True), (False, True), (True, False), (False, False)])
    return [
        make_request(model, 5000 + tokens, tokens, chat=chat, stream=stream, output=32)
        for tokens, (chat, stream) in zip(lengths, kinds, strict=False)
    ]


def salted(request: Request) -> Request:
    """The same request, which no prefix cache knows."""
    return Request(request.path, {**request.body, "cache_salt": uuid.uuid4().hex})


def send_all(url: str, requests: Sequence[Request], at_once: int) -> list[Outcome]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda r: Outcome(r, client.ask(url, r.path, r.body)), requests))


@dataclass
class Traffic:
    """Requests sent to a service by several threads until `stop` is set, and their outcomes."""

    url: str
    model: str
    sent: list[Outcome] = field(default_factory=list[Outcome])
    """Those in flight too."""
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    stop: threading.Event = field(default_factory=threading.Event)

    def send(self, request: Request) -> Outcome:
        outcome = Outcome(request, client.Answer(), time.monotonic())
        self.sent.append(outcome)
        client.ask(self.url, request.path, request.body, answer=outcome.answer)
        outcome.ended = time.monotonic()
        self.outcomes.append(outcome)
        return outcome

    @property
    def failed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.answer.error or o.answer.finish_reason != "length"]


@dataclass
class Load(Traffic):
    """The mixed requests in turn, kept in flight by `workers` threads."""

    longest: int = 800
    """Prompt tokens at most."""

    def __post_init__(self) -> None:
        self._turns = itertools.cycle(mixed_requests(self.model, self.longest))
        self._lock = threading.Lock()

    def rename(self, model: str) -> None:
        """Later requests ask for the model by this name; returns when those by the name of before have ended."""
        with self._lock:
            self.model, self._turns = model, itertools.cycle(mixed_requests(model, self.longest))
            before = list(self.sent)
        wait_for("the requests by the old name", lambda: all(o.ended for o in before), client.SECONDS)

    def work(self) -> None:
        while not self.stop.is_set():
            with self._lock:
                request = next(self._turns)
            self.send(salted(request))


@contextmanager
def load(url: str, model: str, workers: int = 8, longest: int = 800) -> Generator[Load]:
    running = Load(url, model, longest=longest)
    threads = [threading.Thread(target=running.work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running.stop.set()
        for thread in threads:
            thread.join(timeout=client.SECONDS + 10)
    unanswered = len(running.sent) - len(running.outcomes)
    assert not unanswered, f"{unanswered} requests have neither an answer nor an error"


def wait_for_answers(running: Traffic, more: int) -> None:
    target = len(running.outcomes) + more
    wait_for(f"{more} more answers", lambda: len(running.outcomes) >= target, 180, every=0.2)


def in_flight(service: str, namespace: str, prefill_pod: str = "") -> dict[str, float]:
    """Requests in prefill and in decode now, as the routers count them; in prefill on that pod only, if named."""
    pods = [p["metadata"]["name"] for p in kube.pods(service, contract.ROUTER, namespace) if kube.is_ready(p)]
    pages = [kube.router_metrics(pod, namespace) for pod in pods]
    name = "phasewise_router_pod_inflight_requests"
    prefill = ('role="prefill"', f'pod="{prefill_pod}"') if prefill_pod else ('role="prefill"',)
    labels = {"prefill": prefill, "decode": ('role="decode"',)}
    return {phase: sum(kube.total(p, name, *of) for p in pages) for phase, of in labels.items()}


def wait_both_phases(service: str, namespace: str, prefill_pod: str = "") -> dict[str, float]:
    """Until requests are in prefill and in decode; how many."""

    def probe() -> dict[str, float] | None:
        now = in_flight(service, namespace, prefill_pod)
        return now if min(now.values()) > 0 else None

    return wait_for("requests in prefill and in decode", probe, 60, every=0.05)


def restarts(service: str, role: str, namespace: str) -> dict[str, tuple[int, str]]:
    """Restarts of each pod of a role, and how its container ended last: that shows an engine's own crash."""
    found: dict[str, tuple[int, str]] = {}
    for pod in kube.pods(service, role, namespace):
        for status in pod["status"].get("containerStatuses", []):
            ended = status.get("lastState", {}).get("terminated", {})
            how = f"exit {ended.get('exitCode')}: {ended.get('message', '')[:300]}" if ended else ""
            found[pod["metadata"]["name"]] = (status["restartCount"], how)
    return found


def delete_pod(name: str, namespace: str, *, force: bool = False) -> None:
    flags = ["--grace-period=0", "--force"] if force else []
    cluster.kubectl("-n", namespace, "delete", "pod", name, "--wait=false", *flags)


@dataclass(frozen=True)
class Latency:
    """As clients saw it, in seconds; nan where nothing was measured."""

    ttft_p50: float
    ttft_p95: float
    itl: float

    def __str__(self) -> str:
        return f"TTFT p50 {self.ttft_p50:.2f} s, p95 {self.ttft_p95:.2f} s; ITL {1000 * self.itl:.0f} ms"


def latency(outcomes: Sequence[Outcome]) -> Latency:
    ttfts = sorted(o.answer.ttft for o in outcomes if o.answer.ttft is not None)
    itls = [o.answer.itl for o in outcomes if o.answer.itl is not None]
    return Latency(quantile(ttfts, 0.5), quantile(ttfts, 0.95), statistics.mean(itls) if itls else math.nan)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, the smallest that at least such a share does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan
