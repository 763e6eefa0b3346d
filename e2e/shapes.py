"""The two loads that make one pool too small and leave the other alone, sized to the machine they run on.

What is too much for one pod depends on the machine, and from minute to minute on who else uses it. So each load asks
for more until it is told that it is `enough`, since there are two pods: `PromptHeavy` sends long prompts at a rate, as
far as not too many wait, and then stays at that rate; `GenerationHeavy` keeps streams open, as many as two pods hold.
The few prompts come again and again, each time with another salt, so that no cache makes a prefill needless and yet
all answers can be held against the engine's own.
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

from e2e.client import Answer
from e2e.load import Outcome, Request, Traffic, make_request
from phasewise_runtime import contract

PROMPTS = 4
MOST_OPEN = 256
"""Requests in flight at most."""
STREAM_EVERY = 0.8
"""Slow enough that what the last ones did to ITL is seen before too many have come."""
TOKENS_JUDGED = 24
"""The last of a stream. Of the tiny model every character is a token."""


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
GENERATION_HEAVY = Shape("generation-heavy", contract.DECODE, prompt=24, output=100)


@dataclass
class Shaped(Traffic):
    """A load of one shape; `run` is its thread."""

    shape: Shape = PROMPT_HEAVY
    enough: threading.Event = field(default_factory=threading.Event)
    """Set by who sees that the pool has grown: the load need not find out any more how much is too much for one pod."""

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
    every: float = 12.0
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
    """A closed loop: streams that are kept open, one more or one less at a time, as ITL is.

    | the pool              | one more where ITL is below | one less where it is above |
    |-----------------------|-----------------------------|----------------------------|
    | is too small          | `overload` times its target | never                      |
    | has grown: `enough`   | `calm` times its target     | `strained` times           |

    So whatever the machine does meanwhile, one pod has too many, and two have too many for one but not for two. None
    is added while one waits for `patience` of the TTFT target: the engines are full, which is too much for one as well.
    """

    shape: Shape = GENERATION_HEAVY
    target: float = math.inf
    """ITL, seconds."""
    overload: float = 1.1
    calm: float = 0.75
    strained: float = 0.85
    ttft: float = math.inf
    """TTFT target, seconds..."""
    patience: float = 0.5
    """...and the share of it."""
    most: int = 60
    """More than an engine takes at once, which makes one too small however fast the machine is; two take them all."""
    streams: int = 0
    """That there are to be..."""
    running: int = 0
    """...and that there are: one that is too many ends with its request."""

    def run(self) -> None:
        with ThreadPoolExecutor(self.most) as pool:
            kept: list[Future[None]] = []
            while not self.stop.wait(STREAM_EVERY):
                change = self._change(gap_now(self.sent) / self.target)
                self.streams += change
                if change > 0:
                    with self._lock:
                        self.running += 1
                    kept.append(pool.submit(self.keep_open))
            for each in kept:
                each.result()

    def _change(self, gap: float) -> int:
        """Streams more or less. `gap`: ITL now, in targets."""
        low, high = (self.calm, self.strained) if self.enough.is_set() else (self.overload, math.inf)
        if self.running > self.streams:
            return 0
        if gap > high:
            return -1 if self.streams > 1 else 0
        return int(gap < low and self.streams < self.most and waited_now(self.sent) < self.patience * self.ttft)

    @property
    def size(self) -> str:
        return f"{self.streams} streams of {self.shape.output} tokens"

    def keep_open(self) -> None:
        """One stream after another, until there are too many."""
        while not self.stop.is_set() and not self._is_too_many():
            self.send_next()

    def _is_too_many(self) -> bool:
        with self._lock:
            too_many = self.running > self.streams
            self.running -= too_many
        return too_many


def salted(request: Request) -> Request:
    """No cache knows it."""
    return Request(request.path, {**request.body, "cache_salt": uuid.uuid4().hex})


def gap_now(sent: Sequence[Outcome]) -> float:
    """Mean gap between the last tokens of the middle one of the streams in flight, in seconds; 0 where none has enough.

    Of the last, since a stream's mean still tells of the time before the others came.
    """
    means = [_last_gap(o.answer) for o in sent if not o.ended]
    return statistics.median(known) if (known := [m for m in means if m is not None]) else 0.0


def waited_now(sent: Sequence[Outcome]) -> float:
    """Seconds that the first of those without a token has waited; 0 where none waits."""
    now = time.monotonic()
    return max((now - o.began for o in sent if not o.ended and o.answer.ttft is None), default=0.0)


def _last_gap(answer: Answer) -> float | None:
    tokens, seconds = 0, 0.0
    # The stream goes on meanwhile: one of the lists may be ahead.
    for gap, size in reversed(list(zip(answer.gaps, answer.sizes, strict=False))):
        tokens, seconds = tokens + size, seconds + gap
        if tokens >= TOKENS_JUDGED:
            return seconds / tokens
    return None


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
