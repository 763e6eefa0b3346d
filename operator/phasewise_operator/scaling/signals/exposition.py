"""A Prometheus exposition, the families that are needed: bytes -> typed samples. Pure.

The Prometheus text format (version 0.0.4) over bytes. Only the needed families are looked at, because the exposition of
vLLM has seven hundred lines and scaling needs a hundred of them. What cannot be parsed is a ParseError, never zeros: an
exposition that is cut off must not look like a service without traffic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from phasewise_operator.scaling.signals.histograms import Histogram

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Sorted by name: one label set is one value, in whatever order an exposition writes it."""


class MetricType(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class FamilyFilter:
    """What to take from an exposition: families by the name that their samples carry (counters with `_total`)."""

    families: Mapping[str, MetricType]
    required: str
    """A family that every such exposition has: without it, something else has answered."""


@dataclass(frozen=True)
class ParsedMetrics:
    """By family, then by label set. A family without a sample is absent."""

    gauges: Mapping[str, Mapping[Labels, float]]
    counters: Mapping[str, Mapping[Labels, float]]
    histograms: Mapping[str, Mapping[Labels, Histogram]]


@dataclass(frozen=True)
class ParseError:
    message: str


def parse(body: bytes, needed: FamilyFilter) -> ParsedMetrics | ParseError:
    if not body:
        return ParseError("the answer is empty")
    if not body.endswith(b"\n"):
        return ParseError("the answer is cut off: its last line has no end")
    # With every sample after a newline, one search for newline and name finds samples and nothing else.
    text = b"\n" + (body.replace(b"\r\n", b"\n") if b"\r\n" in body else body)
    scalars: dict[MetricType, dict[str, dict[Labels, float]]] = {MetricType.GAUGE: {}, MetricType.COUNTER: {}}
    histograms: dict[str, dict[Labels, Histogram]] = {}
    for name, kind in needed.families.items():
        try:
            if kind is MetricType.HISTOGRAM:
                if read := _read_histograms(text, name):
                    histograms[name] = read
            elif values := _read_values(text, name, counter=kind is MetricType.COUNTER):
                scalars[kind][name] = values
        except ValueError as error:
            return ParseError(f"{name}: {error}")
    if not any(needed.required in found for found in (*scalars.values(), histograms)):
        return ParseError(f"there is no {needed.required}: these are not the metrics that were asked for")
    return ParsedMetrics(scalars[MetricType.GAUGE], scalars[MetricType.COUNTER], histograms)


def _read_values(text: bytes, family: str, *, counter: bool) -> dict[Labels, float]:
    series = family.encode()
    found = {labels: value for (name, labels, _), value in _samples(text, series) if name == series}
    if counter:
        for value in found.values():
            _check_count(value)
    return found


@dataclass
class _Building:
    counts: dict[float, float] = field(default_factory=dict[float, float])
    sum: float | None = None
    count: float | None = None

    def finish(self) -> Histogram:
        bounds, counts = zip(*sorted(self.counts.items()), strict=True) if self.counts else ((), ())
        if not bounds or bounds[-1] != math.inf or self.sum is None or self.count is None:
            raise ValueError("a histogram lacks its +Inf bucket, its sum or its count")
        _check_count(sum(counts))
        if list(counts) != sorted(counts) or min(counts) < 0:
            raise ValueError("the buckets of a histogram are not cumulative")
        if not math.isfinite(self.sum):
            raise ValueError(f"a sum is {self.sum}")
        return Histogram(_shared_bounds(bounds), counts, self.sum)


def _read_histograms(text: bytes, family: str) -> dict[Labels, Histogram]:
    found: dict[Labels, _Building] = {}
    series = family.encode()
    _, sum_, count = names = series + b"_bucket", series + b"_sum", series + b"_count"
    of: Labels | None = None
    one = _Building()
    for (name, labels, bound), value in _samples(text, series):
        if name not in names:
            continue
        if labels is not of:  # hashing labels on every line would be a third of the cost
            of, one = labels, found.setdefault(labels, _Building())
        if bound is not None:
            one.counts[bound] = value
        elif name == sum_:
            one.sum = value
        elif name == count:
            one.count = value
        else:
            raise ValueError("a bucket has no upper bound")
    return {labels: one.finish() for labels, one in found.items()}


def _check_count(value: float) -> None:
    """What only counts up. NaN or less than nothing would poison every window that it enters."""
    if not 0 <= value < math.inf:
        raise ValueError(f"a counter is {value}")


# --- lines -------------------------------------------------------------------------------------------------


class _Series(NamedTuple):
    name: bytes
    labels: Labels
    """Without `le` where `bound` has it."""
    bound: float | None = None
    """Of a bucket."""


_VALUE: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SERIES: Final = re.compile(rf'[ \t]*([\w:]++)[ \t]*(?:\{{([^"}}]*+(?:{_VALUE}[^"}}]*+)*+)\}})?[ \t]*'.encode())
_LABEL: Final = re.compile(rf"[ \t]*(\w++)[ \t]*=[ \t]*({_VALUE})[ \t]*(?:,[ \t]*|$)".encode())
_SAMPLE: Final = re.compile(_SERIES.pattern + rb"(?<=[ \t}])([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*")
_ESCAPED: Final = re.compile(r'\\([\\"n])')
_ZERO: Final = 0.0
"""One object for all zeros: most values of an idle engine, and an operator keeps the newest of every pod."""
_SERIES_KEPT: Final = 2**14
"""Expositions repeat their series round after round, and so do pods of one model. Some 8 MB where it fills."""


def _samples(text: bytes, name: bytes) -> list[tuple[_Series, float]]:
    """Of all families whose name begins with `name`: those of one family stand together almost always, so that
    what lies between the first and the last is a hundredth of the body; where they do not, it is only slower."""
    needle = b"\n" + name
    first = text.find(needle)
    if first < 0:
        return []
    last = text.find(b"\n", text.rfind(needle) + 1)
    found: list[tuple[_Series, float]] = []
    for line in text[first + 1 : last].split(b"\n"):
        if line.startswith(name):
            head, _, value = line.rpartition(b" ")
            series = _series(head)
            found.append((series, float(value) or _ZERO) if series else _sample(line))
    return found


@lru_cache(maxsize=_SERIES_KEPT)
def _series(text: bytes) -> _Series | None:
    """None where the text is not a name with labels and nothing else, such as when a timestamp follows the value."""
    found = _SERIES.fullmatch(text)
    return _of(found[1], found[2]) if found else None


def _sample(line: bytes) -> tuple[_Series, float]:
    """The slow way, for lines that are not `series value`."""
    found = _SAMPLE.fullmatch(line)
    if not found:
        raise ValueError(f"this is not a sample: {line[:100]!r}")
    return _of(found[1], found[2]), float(found[3])


def _of(name: bytes, inside: bytes | None) -> _Series:
    labels = _labels(inside or b"")
    if not name.endswith(b"_bucket"):
        return _Series(name, _shared(tuple(sorted(labels.items()))))
    bound = labels.pop("le", None)
    if bound is not None and math.isnan(float(bound)):
        raise ValueError("a bucket has no upper bound")
    return _Series(name, _shared(tuple(sorted(labels.items()))), None if bound is None else float(bound))


@lru_cache(maxsize=_SERIES_KEPT)
def _shared(labels: Labels) -> Labels:
    """One object for one label set: expositions hold thousands, and the same object need not be hashed or compared."""
    return labels


@lru_cache(maxsize=2**10)
def _shared_bounds(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """One object for the bounds that all histograms of a family have."""
    return bounds


def _labels(inside: bytes) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = len(inside) - len(inside.lstrip(b" \t"))
    while at < len(inside):
        found = _LABEL.match(inside, at)
        if not found:
            raise ValueError(f"these are not labels: {inside[:100]!r}")
        value = found[2][1:-1].decode()
        labels[found[1].decode()] = _ESCAPED.sub(_unescape, value) if "\\" in value else value
        at = found.end()
    return labels


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
