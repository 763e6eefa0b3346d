"""The two loads that make one pool too small and not the other, sized to the machine they run on.

What is too much for one pod depends on the machine, and from minute to minute on who else uses it. So each load grows
until `pool_has_grown` is set, when there are two pods: `PromptHeavy` sends long prompts at a rate that rises while the
pods keep up, and then stays; `GenerationHeavy` keeps streams open, as many as two pods hold.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from e2e.client import Answer
from e2e.load import Outcome, Request, Traffic, make_request, salted
from phasewise_runtime import contract

PROMPTS = 4
MAX_IN_FLIGHT = 256
STREAM_SECONDS = 0.8
"""Between two changes of the number of streams: long enough that ITL shows the last change before the next."""
RECENT_TOKENS = 24
"""The last of a stream, which its current ITL is the mean of. Of the tiny model every character is a token."""
MAX_STREAMS = 60
"""More than an engine takes at once, which makes one too small however fast the machine is; two take them all."""
OVERLOAD, CALM, STRAINED = 1.1, 0.75, 0.85
PATIENCE = 0.5
FAR_BELOW = 0.5
MISSES, MISSES_SECONDS = 3, 10.0


@dataclass(frozen=True)
class Shape:
    """The requests of a load; sizes in tokens."""

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
class ShapedLoad(Traffic):
    """A load of one shape; `run` is its thread."""

    shape: Shape = PROMPT_HEAVY
    pool_has_grown: threading.Event = field(default_factory=threading.Event)
    """Set by the caller that sees two pods: the load stops to grow."""

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
        """How much it sends, to be printed."""
        raise NotImplementedError


@dataclass
class PromptHeavy(ShapedLoad):
    """Prompts at `overload` times the rate that the pods were found to take, in a queue of limited length.

    The rate is raised for as long as the pods keep up: the machine may have become faster since it was found. It may
    have become slower too, and then two pods never clear the queue of the time with one. So no more are in flight than
    arrive in `patience` of the TTFT target; the others are not sent. On one pod, overload x patience miss the target.
    """

    target: float = math.inf
    """TTFT, seconds."""
    patience: float = 0.9
    """Share of `target`."""
    overload: float = 1.35
    rate: float = 0.0
    """Prompts per second; 0 while it is being found."""
    step: float = 1.2
    raise_after: float = 12.0
    """Seconds that the pods have to keep up for the rate to be raised."""
    kept_up: int = 3
    """Prompts in flight below which the pods keep up."""

    def run(self) -> None:
        with ThreadPoolExecutor(MAX_IN_FLIGHT) as pool:
            self.rate = self.overload * self._capacity()
            due = since = time.monotonic()
            sent: list[Future[Outcome]] = []
            while not self.stop.wait(max(0.0, due - time.monotonic())):
                in_flight = len(self.sent) - len(self.outcomes)
                if in_flight < min(MAX_IN_FLIGHT, self.patience * self.target * self.rate):
                    sent.append(pool.submit(self.send_next))
                due += 1 / self.rate
                if in_flight >= self.kept_up:
                    since = due
                elif due - since > self.raise_after and not self.pool_has_grown.is_set():
                    self.rate, since = self.step * self.rate, due
            for each in sent:
                each.result()

    @property
    def size(self) -> str:
        return f"up to {self.rate:.1f} prompts of {self.shape.prompt} tokens per second"

    def _capacity(self, at_once: int = 2, samples: int = 10) -> float:
        """Prompts per second while there is always another one waiting."""
        with ThreadPoolExecutor(at_once) as pool:
            began = time.monotonic()
            list(pool.map(lambda _: self.send_next(), range(samples)))
        return samples / (time.monotonic() - began)


@dataclass
class GenerationHeavy(ShapedLoad):
    """A closed loop: streams are kept open, one more or one less at a time, as ITL follows (`next_streams`)."""

    shape: Shape = GENERATION_HEAVY
    target: float = math.inf
    """ITL, seconds."""
    ttft: float = math.inf
    """TTFT target, seconds."""
    streams: int = 0
    """Desired..."""
    running: int = 0
    """...and running: one that is too many ends with its request."""

    def run(self) -> None:
        with ThreadPoolExecutor(MAX_STREAMS) as pool:
            kept: list[Future[None]] = []
            while not self.stop.wait(STREAM_SECONDS):
                if self.running > self.streams:
                    continue  # the last change has not had its effect yet
                itl, waited = current_itl(self.sent) / self.target, longest_wait(self.sent) / self.ttft
                self.streams = next_streams(self.streams, itl, waited, grown=self.pool_has_grown.is_set())
                for _ in range(self.streams - self.running):
                    with self._lock:
                        self.running += 1
                    kept.append(pool.submit(self.keep_open))
            for each in kept:
                each.result()

    @property
    def size(self) -> str:
        return f"{self.streams} streams of {self.shape.output} tokens"

    def keep_open(self) -> None:
        """One stream after another, until there are too many."""
        while not self.stop.is_set() and not self._leaves():
            self.send_next()

    def _leaves(self) -> bool:
        with self._lock:
            too_many = self.running > self.streams
            self.running -= too_many
        return too_many


def next_streams(streams: int, itl: float, waited: float, *, grown: bool) -> int:
    """Streams that there should be next. `itl` and `waited` (the longest wait for a first token) in their targets.

    | the pool      | one more where ITL is below | one less where it is above |
    |---------------|-----------------------------|----------------------------|
    | is too small  | OVERLOAD                    | never                      |
    | has grown     | CALM                        | STRAINED                   |

    So however fast the machine is, one pod has too many, and two have too many for one but not for two. Far below its
    target one pod gets two more at once. None is added while one waits longer than PATIENCE: the engines are full,
    which is too much for one pod as well.
    """
    low, high = (CALM, STRAINED) if grown else (OVERLOAD, math.inf)
    if itl > high:
        return max(1, streams - 1)
    if itl >= low or waited >= PATIENCE:
        return streams
    return min(MAX_STREAMS, streams + (2 if itl < FAR_BELOW and not grown else 1))


def current_itl(sent: Sequence[Outcome]) -> float:
    """Median over the streams in flight of the mean gap between their last tokens, in seconds; 0 where none has enough.

    Of the last, since the mean over a stream includes the time before the others came.
    """
    means = [_recent_itl(o.answer) for o in sent if not o.ended]
    return statistics.median(known) if (known := [m for m in means if m is not None]) else 0.0


def longest_wait(sent: Sequence[Outcome]) -> float:
    """Seconds that requests have waited for their first token, the longest; 0 where none waits."""
    now = time.monotonic()
    return max((now - o.began for o in sent if not o.ended and o.answer.ttft is None), default=0.0)


def _recent_itl(answer: Answer) -> float | None:
    tokens, seconds = 0, 0.0
    # The stream goes on meanwhile: one of the lists may be longer.
    for gap, size in reversed(list(zip(answer.gaps, answer.sizes, strict=False))):
        tokens, seconds = tokens + size, seconds + gap
        if tokens >= RECENT_TOKENS:
            return seconds / tokens
    return None


def breach(running: ShapedLoad, ttft: float, itl: float) -> float:
    """When, on the monotonic clock, the load's pool began to miss its target; inf where it never did. In seconds.

    That is the last of the first MISSES misses within MISSES_SECONDS: a single slow request is no breach. Prefill
    answers for TTFT; decode for ITL, known once a stream ended, and for TTFT where streams wait for admission.
    """
    missed = [o.began + ttft for o in running.sent if (math.inf if o.answer.ttft is None else o.answer.ttft) > ttft]
    if running.shape.pool == contract.DECODE:
        missed += [o.ended for o in running.sent if o.answer.itl is not None and o.answer.itl > itl]
    missed.sort()
    rows = zip(missed, missed[MISSES - 1 :], strict=False)
    return next((last for first, last in rows if last - first < MISSES_SECONDS), math.inf)


@contextmanager
def applied(load: ShapedLoad) -> Generator[ShapedLoad]:
    """The load runs until the block ends, and what was sent by then is answered."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.run)
        try:
            yield load
        finally:
            load.stop.set()
    running.result()
