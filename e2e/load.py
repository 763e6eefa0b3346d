"""Load on a service while something is done to it, and proof that nothing was lost.

Every prompt is unique from its first character, so that no cache makes a prefill leg needless; every answer is asked
again of the engine alone afterwards (alone.py).
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e import client, cluster, kube
from phasewise_runtime import contract

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
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


def send_all(url: str, requests: list[Request], at_once: int) -> list[Outcome]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda r: Outcome(r, client.ask(url, r.path, r.body)), requests))


@dataclass
class Traffic:
    """Requests sent to a service by several threads until `stop` is set, and what became of them."""

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
    """Requests of all kinds, kept in flight by `workers` threads."""

    workers: int = 8
    longest: int = 800
    """Prompt tokens at most."""
    seeds: Iterator[int] = field(default_factory=lambda: itertools.count(random.randrange(1 << 30)))

    def work(self, number: int) -> None:
        shapes = itertools.cycle([(True, True), (False, True), (True, False), (False, False)])
        for _ in range(number % 4):
            next(shapes)
        while not self.stop.is_set():
            chat, stream = next(shapes)
            seed = next(self.seeds)
            tokens = 100 + seed % (self.longest - 100)
            request = make_request(self.model, seed, tokens, chat=chat, stream=stream, output=32)
            self.send(request)


@contextmanager
def load(url: str, model: str, workers: int = 8, longest: int = 800) -> Generator[Load]:
    running = Load(url, model, workers=workers, longest=longest)
    threads = [threading.Thread(target=running.work, args=(n,), daemon=True) for n in range(workers)]
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


def enough(running: Traffic, more: int) -> None:
    """Wait for so many more answers."""
    target = len(running.outcomes) + more
    kube.wait_for(f"{more} more answers", lambda: len(running.outcomes) >= target, 180, every=0.2)


def in_flight(service: str, namespace: str, prefill_pod: str = "") -> dict[str, float]:
    """Requests in each leg at this moment, over all routers, as they count them; in prefill on that pod, if named."""
    pods = [p["metadata"]["name"] for p in kube.pods(service, contract.ROUTER, namespace) if kube.is_ready(p)]
    pages = [kube.router_metrics(pod, namespace) for pod in pods]
    name = "phasewise_router_pod_inflight_requests"
    prefill = ('role="prefill"', f'pod="{prefill_pod}"') if prefill_pod else ('role="prefill"',)
    labels = {"prefill": prefill, "decode": ('role="decode"',)}
    return {leg: sum(kube.total(p, name, *wanted) for p in pages) for leg, wanted in labels.items()}


def wait_both_legs(service: str, namespace: str, prefill_pod: str = "") -> dict[str, float]:
    """Until requests are in both legs; how many."""

    def probe() -> dict[str, float] | None:
        now = in_flight(service, namespace, prefill_pod)
        return now if min(now.values()) > 0 else None

    return kube.wait_for("requests in both legs", probe, 60, every=0.05)


def restarts(service: str, role: str, namespace: str) -> dict[str, tuple[int, str]]:
    """Restarts of each pod of a role, and how its container ended last: the evidence of an engine's own crash."""
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
