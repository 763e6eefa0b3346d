"""The two loads that make one pool too small and leave the other alone, sized to the machine they run on.

What is too much for one pod depends on the machine, and from minute to minute on who else uses it. So each load asks
for more until it is told that it is `enough`, and then goes on: `PromptHeavy` sends long prompts at a rate, as far as
not too many wait; `GenerationHeavy` keeps streams open. The few prompts come again and again, each time with another
salt, so that no cache makes a prefill needless and yet all answers can be held against the engine's own.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
import uuid
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from e2e.alone import ask_alone, equal
from e2e.client import Answer
from e2e.load import Outcome, Request, Traffic, make_request
from phasewise_runtime import contract

PROMPTS = 4
MOST_OPEN = 256
"""Requests in flight at most."""
STREAM_EVERY = 0.4
MISSES, MISSES_SECONDS = 3, 10.0
TOKENS_JUDGED = 24
"""Of the tiny model every character is a token."""


@dataclass(frozen=True)
class Shape:
    """What the requests of a load are like; sizes in tokens."""

    name: str
    pool: str
    """The pool that it makes too small."""
    prompt: int
    output: int

    def requests(self, model: str) -> list[Request]:
        return [
            make_request(model, 7000 + n, self.prompt, chat=n % 2 == 0, stream=True, output=self.output)
            for n in range(PROMPTS)
        ]


PROMPT_HEAVY = Shape("prompt-heavy", contract.PREFILL, prompt=1500, output=8)
GENERATION_HEAVY = Shape("generation-heavy", contract.DECODE, prompt=24, output=200)


@dataclass
class Shaped(Traffic):
    """A load of one shape; `run` is its thread."""

    shape: Shape = PROMPT_HEAVY
    enough: threading.Event = field(default_factory=threading.Event)
    """Set by who sees that the pool is to grow: the load need not find out any more how much is too much."""

    def __post_init__(self) -> None:
        self._turns = itertools.cycle(self.shape.requests(self.model))
        self._lock = threading.Lock()

    def run(self) -> None:
        raise NotImplementedError

    def send_next(self) -> Outcome:
        with self._lock:
            request = next(self._turns)
        return self.send(salted(request))

    @property
    def size(self) -> str:
        """How much it sends, for people."""
        raise NotImplementedError


@dataclass
class PromptHeavy(Shaped):
    """Prompts at `overload` times the rate that the pods were found to take, then more of them; the queue has an end.

    The rate is raised for as long as the pods keep up: the machine may have become faster since it was found. It may
    have become slower too, and then two pods never clear what came while there was one. So no more are in flight than
    come in `patience` of the TTFT target: the others turn away. On one pod, overload x patience still miss the target.
    """

    target: float = math.inf
    """TTFT, seconds."""
    patience: float = 0.9
    """Share of `target`."""
    overload: float = 1.35
    rate: float = 0.0
    """Prompts per second; 0 while it is being found."""
    step: float = 1.2
    every: float = 8.0
    """Seconds that the pods have to keep up for the rate to be raised."""
    kept_up: int = 3
    """As many prompts in flight say that they do."""

    def run(self) -> None:
        with ThreadPoolExecutor(MOST_OPEN) as pool:
            self.rate = self.overload * self._capacity()
            due = since = time.monotonic()
            sent: list[Future[Outcome]] = []
            while not self.stop.wait(max(0.0, due - time.monotonic())):
                open_now = len(self.sent) - len(self.outcomes)
                if open_now < min(MOST_OPEN, self.patience * self.target * self.rate):
                    sent.append(pool.submit(self.send_next))
                due += 1 / self.rate
                if open_now >= self.kept_up:
                    since = due
                elif due - since > self.every and not self.enough.is_set():
                    self.rate, since = self.step * self.rate, due
            for each in sent:
                each.result()

    @property
    def size(self) -> str:
        return f"up to {self.rate:.1f} prompts of {self.shape.prompt} tokens per second"

    def _capacity(self, at_once: int = 2, samples: int = 10) -> float:
        """Prompts per second while there is always one more that waits."""
        with ThreadPoolExecutor(at_once) as pool:
            began = time.monotonic()
            list(pool.map(lambda _: self.send_next(), range(samples)))
        return samples / (time.monotonic() - began)


@dataclass
class GenerationHeavy(Shaped):
    """A closed loop: streams are added one by one wherever ITL is not yet `overload` times its target.

    An operator that grows the pool ahead of the miss may find later that it need not have. So when it is `enough`,
    streams are still added until ITL has once been at its target: then one pod is too few by any reckoning. But no
    more than `beyond` times as many, and none after that once, so that two pods hold them with ease.
    """

    shape: Shape = GENERATION_HEAVY
    target: float = math.inf
    """ITL, seconds."""
    overload: float = 1.2
    beyond: float = 1.5
    most: int = 60
    """More than an engine takes at once, which makes one too small however fast the machine is; two take them all."""
    streams: int = 0

    def run(self) -> None:
        with ThreadPoolExecutor(self.most) as pool:
            kept: list[Future[None]] = []
            most, itl, told = self.most, self.overload * self.target, False
            while not self.stop.wait(STREAM_EVERY):
                if self.enough.is_set() and not told:
                    most, itl, told = min(most, math.ceil(self.beyond * len(kept))), self.target, True
                if gap_now(self.sent) > itl:
                    most = len(kept) if told else most
                elif len(kept) < most:
                    kept.append(pool.submit(self._stream))
                    self.streams = len(kept)
            for each in kept:
                each.result()

    @property
    def size(self) -> str:
        return f"{self.streams} streams of {self.shape.output} tokens"

    def _stream(self) -> None:
        while not self.stop.is_set():
            self.send_next()


def salted(request: Request) -> Request:
    """No cache knows it."""
    return Request(request.path, {**request.body, "cache_salt": uuid.uuid4().hex})


def gap_now(sent: Sequence[Outcome]) -> float:
    """Mean gap between tokens of the middle one of the streams in flight, in seconds; 0 where too few tokens came."""
    answers = [o.answer for o in sent if not o.ended and len(o.answer.text) >= TOKENS_JUDGED]
    return statistics.median(sum(a.gaps) / (len(a.text) - 1) for a in answers) if answers else 0.0


@contextmanager
def applied(load: Shaped) -> Generator[Shaped]:
    """The load runs until the block ends, and what was sent by then is answered."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.run)
        try:
            yield load
        finally:
            load.stop.set()
    running.result()


@dataclass(frozen=True)
class Latency:
    """What clients saw, in seconds; nan where there was nothing."""

    requests: int
    ttft_p50: float
    ttft_p95: float
    itl: float

    def __str__(self) -> str:
        return f"TTFT p50 {self.ttft_p50:.2f} s, p95 {self.ttft_p95:.2f} s; ITL {1000 * self.itl:.0f} ms"


def latency(outcomes: Sequence[Outcome]) -> Latency:
    ttfts = sorted(o.answer.ttft for o in outcomes if o.answer.ttft is not None)
    gaps = [o.answer.itl for o in outcomes if o.answer.itl is not None]
    return Latency(
        len(outcomes), quantile(ttfts, 0.5), quantile(ttfts, 0.95), statistics.mean(gaps) if gaps else math.nan
    )


def breach(running: Shaped, ttft: float, itl: float) -> float:
    """When, on the monotonic clock, the load's pool began to miss its target; inf where it never did. In seconds.

    That is the last of the first MISSES misses within MISSES_SECONDS: a slow request by itself is no breach. Prefill
    answers for TTFT; decode for ITL, known once a stream ended, and for TTFT where streams wait for admission.
    """
    missed = [o.began + ttft for o in running.sent if (math.inf if o.answer.ttft is None else o.answer.ttft) > ttft]
    if running.shape.pool == contract.DECODE:
        missed += [o.ended for o in running.sent if o.answer.itl is not None and o.answer.itl > itl]
    missed.sort()
    rows = zip(missed, missed[MISSES - 1 :], strict=False)
    return next((last for first, last in rows if last - first < MISSES_SECONDS), math.inf)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, the smallest that at least such a share does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def right_answers(engine_alone: str, model: str, shape: Shape) -> dict[str, Outcome]:
    """What the engine alone answers to each prompt of a shape.

    One by one: a prompt computed beside a stream slows it, and would teach the operator a slow decode pod.
    """
    return {prompt_of(o.request): o for o in ask_alone(engine_alone, shape.requests(model), 1)}


def prompt_of(request: Request) -> str:
    return str(request.body.get("prompt") or request.body["messages"][0]["content"])


def wrong_answers(outcomes: Sequence[Outcome], right: dict[str, Outcome], shape: Shape) -> list[str]:
    """Answers that lack a token, have one twice, or another one than the engine alone gives."""

    def whole(answer: Answer, alone: Outcome) -> bool:
        return answer.usage.get("completion_tokens") == shape.output and equal(answer.text, alone)

    return [
        f"{o.request.path}: {o.answer.usage.get('completion_tokens')} tokens {o.answer.text!r}"
        for o in outcomes
        if not whole(o.answer, right[prompt_of(o.request)])
    ]
