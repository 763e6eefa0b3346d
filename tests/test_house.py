"""What the project promises about its own source: pure modules, public names, sizes of files and functions."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from tests.pure_modules import ROOT, path_of, pure_modules

from phasewise_operator.metrics import Metrics as OperatorMetrics
from phasewise_runtime import contract
from phasewise_runtime.router.metrics import Metrics as RouterMetrics

SOURCES = sorted(p for top in ("operator", "runtime", "e2e", "bench", "tests") for p in (ROOT / top).rglob("*.py"))
SHIPPED = [p for p in SOURCES if p.relative_to(ROOT).parts[0] in {"operator", "runtime"}]
PRIVATE_WORDS = {
    *("advice", "alone", "confess", "descent", "doubt", "fleet", "goal", "granted", "handover", "leg", "legs", "news"),
    *("outside", "owned", "relay", "room", "rooms", "slack", "spin", "staffing", "surroundings", "told", "tries"),
    *("trial", "trouble", "trust", "verdict", "victims", "wanted", "whole", "wish"),
}
"""Words that the project once used for things which have a name in the field. No public name contains one."""
FILE_LINES = 300
FUNCTION_LINES = 50
CRUMB_LINES = 60


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_a_module_that_calls_itself_pure_is_held_to_it() -> None:
    listed = [path_of(module) for module in pure_modules()]
    claims = [p for p in SHIPPED if re.search(r"(^|[.;:] )Pure\b", ast.get_docstring(ast.parse(p.read_text())) or "")]
    assert len(claims) > 30, "the search for docstrings still finds them"
    free = [module_name(p) for p in claims if not any(p == entry or p.is_relative_to(entry) for entry in listed)]
    assert free == [], "these say Pure: add them to the first import contract in pyproject.toml"


def metric_names(registry: CollectorRegistry) -> Iterator[str]:
    """Names and labels, also of metrics that have no series yet."""
    for collector, names in registry._collector_to_names.items():
        yield from names
        yield from getattr(collector, "_labelnames", ())


def field_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                yield from value
            yield from field_names(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from field_names(item)


def crd_names() -> Iterator[str]:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        yield from field_names(yaml.safe_load(path.read_text())["spec"]["versions"])


def contract_names() -> Iterator[str]:
    for name, value in vars(contract).items():
        if name.isupper():
            yield json.dumps(value)


def words(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return {word.lower() for word in re.findall(r"[A-Za-z]+", spaced)}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(lambda: metric_names(RouterMetrics().registry), id="router-metrics"),
        pytest.param(lambda: metric_names(OperatorMetrics().registry), id="operator-metrics"),
        pytest.param(contract_names, id="contract"),
        pytest.param(crd_names, id="crds"),
    ],
)
def test_public_names_are_the_fields_own(names: Any) -> None:
    found = sorted(set(names()))
    assert len(found) > 3
    assert {name: sorted(words(name) & PRIVATE_WORDS) for name in found if words(name) & PRIVATE_WORDS} == {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (
                f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                (node.end_lineno or node.lineno) - node.lineno + 1,
            )


def test_files_stay_small_enough_to_read() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_few_files_are_crumbs() -> None:
    """Files that are only read together are one file. The router and scaling/policy are left out."""
    counted = [p for p in SHIPPED if not {"router", "policy"} & set(p.parts)]
    small = [p for p in counted if len(p.read_text().splitlines()) < CRUMB_LINES]
    assert len(small) <= len(counted) / 5, sorted(str(p.relative_to(ROOT)) for p in small)


def test_functions_can_be_taken_in_at_a_glance() -> None:
    lengths = dict(pair for path in SOURCES for pair in functions(path))
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES} == {}
    shipped = sorted(lines for path in SHIPPED for _, lines in functions(path))
    assert shipped[len(shipped) // 2] <= 9, "median"
    assert shipped[len(shipped) * 9 // 10] <= 25, "90 %"
