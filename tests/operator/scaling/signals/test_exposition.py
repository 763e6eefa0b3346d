"""Pages: what is taken from them is what prometheus-client scrapes, and what cannot be read is said, never zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.parser import text_string_to_metric_families
from tests.operator.scaling.signals.exposition import EXPOSITIONS, Router, read

from phasewise_operator.scaling.signals import families
from phasewise_operator.scaling.signals.exposition import (
    FamilyFilter,
    Labels,
    MetricType,
    ParsedMetrics,
    ParseError,
    parse,
)
from phasewise_operator.scaling.signals.histograms import Histogram
from phasewise_runtime import contract
from phasewise_runtime.router.metrics import Metrics

ONE = FamilyFilter({"one": MetricType.GAUGE}, "one")
ANY = FamilyFilter({"g": MetricType.GAUGE, "c_total": MetricType.COUNTER, "h": MetricType.HISTOGRAM}, "g")


def reference(body: bytes, desired: FamilyFilter) -> ParsedMetrics:
    """The same exposition, as prometheus-client scrapes it."""
    scalars: dict[MetricType, dict[str, dict[Labels, float]]] = {MetricType.GAUGE: {}, MetricType.COUNTER: {}}
    buckets: dict[str, dict[Labels, dict[float, float]]] = {}
    sums: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            if (kind := desired.families.get(sample.name)) in scalars:
                scalars[kind].setdefault(sample.name, {})[found] = sample.value
            elif desired.families.get(family.name) is MetricType.HISTOGRAM and sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                buckets.setdefault(family.name, {}).setdefault(found, {})[bound] = sample.value
            elif desired.families.get(family.name) is MetricType.HISTOGRAM and sample.name.endswith("_sum"):
                sums.setdefault(family.name, {})[found] = sample.value
    histograms = {
        name: {found: Histogram(tuple(one), tuple(one.values()), sums[name][found]) for found, one in by.items()}
        for name, by in buckets.items()
    }
    return ParsedMetrics(scalars[MetricType.GAUGE], scalars[MetricType.COUNTER], histograms)


def busy_router() -> bytes:
    router = Router()
    router.arrivals.inc(3)
    for pod in ("a", "b"):
        router.requests.labels(contract.DECODE, pod).inc()
        router.inflight.labels(contract.DECODE, pod).inc(0.25)
    router.phase.labels("queue").observe(0.3)
    router.ttft.observe(5)
    return router.body()


@pytest.mark.parametrize(
    ("body", "desired", "count"),
    [
        ((EXPOSITIONS / "vllm-0.32-decode.txt").read_bytes(), families.ENGINE, 9),
        ((EXPOSITIONS / "vllm-0.32-prefill.txt").read_bytes(), families.ENGINE, 9),
        (busy_router(), families.ROUTER, 8),
    ],
    ids=["decode", "prefill", "router"],
)
@pytest.mark.parametrize("change", [lambda b: b, lambda b: b.replace(b"\n", b"\r\n")], ids=["lf", "crlf"])
def test_real_expositions_are_parsed_as_prometheus_client_reads_them(
    body: bytes, desired: FamilyFilter, count: int, change: Callable[[bytes], bytes]
) -> None:
    found = read(change(body), desired)
    assert found == reference(body, desired)
    assert len(found.gauges) + len(found.counters) + len(found.histograms) == count


def test_series_that_do_not_stand_together_are_all_found() -> None:
    body = (EXPOSITIONS / "vllm-0.32-decode.txt").read_bytes()
    lines = body.splitlines(keepends=True)
    assert read(b"".join(reversed(lines)), families.ENGINE) == read(body, families.ENGINE)
    assert read(b"".join(lines[::2] + lines[1::2]), families.ENGINE) == read(body, families.ENGINE)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["}", '"', "\\", "\n", "\\n", " 1"]
)
NAMES = st.lists(st.sampled_from(["pod", "role", "engine", "zone", "_x"]), unique=True, max_size=3)


Metric = TypeVar("Metric", Gauge, Counter, ClientHistogram)


def bystanders(registry: CollectorRegistry) -> None:
    """Their names begin as those of the families asked for."""
    Gauge("gg", "A gauge.", registry=registry).set(7)
    Counter("c_total_of_all", "A counter.", registry=registry).inc()
    ClientHistogram("hh", "A histogram.", registry=registry).observe(1)


@st.composite
def registries(draw: st.DrawFn) -> CollectorRegistry:
    registry = CollectorRegistry()

    def children(make: Callable[[list[str]], Metric]) -> list[Metric]:
        names = draw(NAMES)
        metric = make(names)
        rows = draw(st.lists(st.tuples(*(TEXT for _ in names)), min_size=1, max_size=3, unique=True))
        return [metric.labels(*row) if names else metric for row in rows]

    def gauge() -> None:
        for child in children(lambda names: Gauge("g", draw(TEXT), names, registry=registry)):
            child.set(draw(st.floats(allow_nan=False)))

    def counter() -> None:
        for child in children(lambda names: Counter("c", draw(TEXT), names, registry=registry)):
            child.inc(draw(st.floats(0, 1e300)))

    def histogram() -> None:
        # prometheus-client leaves the sum out where a bound is negative.
        bounds = sorted(draw(st.lists(st.floats(0, 1e9), min_size=1, max_size=5, unique=True)))
        make = partial(ClientHistogram, "h", draw(TEXT), buckets=bounds, registry=registry)
        for child in children(make):
            for seconds in draw(st.lists(st.floats(-1e9, 1e9), max_size=5)):
                child.observe(seconds)

    for make in draw(st.permutations([gauge, counter, histogram, partial(bystanders, registry)])):
        make()
    return registry


@settings(max_examples=150, deadline=None)
@given(registry=registries())
def test_any_registry_is_parsed_as_prometheus_client_reads_it(registry: CollectorRegistry) -> None:
    body = generate_latest(registry)
    # The reference splits at what Unicode calls a line; the format, and so this reader, at a line feed only.
    if len(body.decode().splitlines()) == body.count(b"\n"):
        assert read(body, ANY) == reference(body, ANY)


@pytest.mark.parametrize(
    ("line", "found", "value"),
    [
        ("one 1", {}, 1),
        ("one{} 1", {}, 1),
        ("one 1.5e+03", {}, 1500),
        ("one +Inf", {}, math.inf),
        ("one -Inf", {}, -math.inf),
        ("one 3 1795293294469", {}, 3),
        ("one 3 1795293294469\r", {}, 3),
        ('one{a="x"} 3 -17952', {"a": "x"}, 3),
        ('one{a="1 2"} 3', {"a": "1 2"}, 3),
        ('one{a="}",b="{"} 3', {"a": "}", "b": "{"}, 3),
        (
            r'one{a="say \"hi\"",b="c:\\dir\\",c="two\nlines"} 3',
            {"a": 'say "hi"', "b": "c:\\dir\\", "c": "two\nlines"},
            3,
        ),
        (r'one{a="\\n"} 3', {"a": "\\n"}, 3),
        ('one{a="x,le=",le="y"} 3', {"a": "x,le=", "le": "y"}, 3),
        ('one { a = "x" , b="y", }  3', {"a": "x", "b": "y"}, 3),
        ('one\t{a="x"}\t3', {"a": "x"}, 3),
        ('one{b="y",a="x"} 3', {"a": "x", "b": "y"}, 3),
    ],
)
def test_a_sample(line: str, found: dict[str, str], value: float) -> None:
    assert read(f"{line}\n".encode(), ONE).gauges == {"one": {tuple(sorted(found.items())): value}}


def test_the_order_of_labels_makes_no_other_series() -> None:
    lines = ['g{b="y",a="x"} 1', 'h_bucket{b="y",le="+Inf",a="x"} 2', 'h_sum{a="x",b="y"} 3', 'h_count{b="y",a="x"} 2']
    found = read("".join(f"{line}\n" for line in lines).encode(), ANY)
    assert found.histograms == {"h": {(("a", "x"), ("b", "y")): Histogram((math.inf,), (2,), 3)}}


def test_not_a_number_is_a_value_of_a_gauge() -> None:
    assert math.isnan(read(b"one NaN\n", ONE).gauges["one"][()])


H = 'h_bucket{le="1.0"} 1\nh_bucket{le="+Inf"} 2\nh_sum 3\nh_count 2\n'


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("", "empty"),
        ("<!doctype html>\n<html><body>Not here</body></html>\n", "not the metrics"),
        ("\0\1\2\n", "not the metrics"),
        ("# HELP g one\n# TYPE g gauge\n", "not the metrics"),
        ("other 1\n", "not the metrics"),
        ("gg 1\n", "not the metrics"),
        ("g 1", "cut off"),
        ("g 1\nc_total 12", "cut off"),
        ("g\n", "not a sample"),
        ("g one\n", "float"),
        ("g{ 1\n", "not a sample"),
        ('g{a="x} 1\n', "not a sample"),
        ("g{a=x} 1\n", "not labels"),
        ('g{a="x"b="y"} 1\n', "not labels"),
        ('g{a="\udcff"} 1\n', "utf-8"),
        ("g 1\nc_total NaN\n", "counter"),
        ("g 1\nc_total -1\n", "counter"),
        ("g 1\n" + H.replace("h_count 2\n", ""), "lacks"),
        ("g 1\n" + H.replace("h_sum 3\n", ""), "lacks"),
        ("g 1\n" + H.replace('h_bucket{le="+Inf"} 2\n', ""), "lacks"),
        ("g 1\nh_sum 3\nh_count 1\n", "lacks"),
        ("g 1\n" + H.replace('le="1.0"} 1', 'le="1.0"} 7'), "not cumulative"),
        ("g 1\n" + H.replace('le="1.0"} 1', 'le="1.0"} -1'), "not cumulative"),
        ("g 1\n" + H.replace('le="1.0"} 1', 'le="1.0"} NaN'), "counter"),
        ("g 1\n" + H.replace('le="1.0"', 'le="NaN"'), "no upper bound"),
        ("g 1\n" + H.replace('{le="1.0"}', ""), "no upper bound"),
        ("g 1\n" + H.replace("h_sum 3", "h_sum NaN"), "sum"),
    ],
)
def test_an_incomplete_exposition_is_an_error_that_names_the_fault(body: str, what: str) -> None:
    found = parse(body.encode(errors="surrogateescape"), ANY)
    assert isinstance(found, ParseError)
    assert what in found.message


def test_the_routers_metrics_are_read_as_exported() -> None:
    found = read(generate_latest(Metrics().registry), families.ROUTER)
    assert contract.METRIC_ARRIVALS in found.counters
    assert set(found.histograms) == set(families.ROUTER_HISTOGRAMS)


def test_a_router_that_does_not_count_arrivals_yet_is_not_a_service_without_traffic() -> None:
    found = parse((EXPOSITIONS / "router-before-arrivals.txt").read_bytes(), families.ROUTER)
    assert isinstance(found, ParseError)
    assert contract.METRIC_ARRIVALS in found.message


def test_an_exposition_cut_off_anywhere_is_never_read_as_fewer_requests() -> None:
    body = (EXPOSITIONS / "vllm-0.32-decode.txt").read_bytes()
    whole = read(body, families.ENGINE)
    for end in range(0, len(body), 97):
        found = parse(body[:end], families.ENGINE)
        if isinstance(found, ParsedMetrics):
            assert all(values == whole.gauges[name] for name, values in found.gauges.items())
            assert all(values == whole.histograms[name] for name, values in found.histograms.items())


def test_families_that_a_version_lacks_are_absent() -> None:
    found = read(b'vllm:num_requests_running{engine="0"} 1.0\n', families.ENGINE)
    assert found == ParsedMetrics({families.RUNNING: {(("engine", "0"),): 1.0}}, {}, {})
