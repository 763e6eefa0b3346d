"""One list of reasons: the documentation has the same, and no decision has another."""

from __future__ import annotations

import re
from pathlib import Path

from phasewise_operator.scaling.policy.reasons import REASONS

DOCS = Path(__file__).parents[4] / "docs/scaling.md"


def documented() -> list[tuple[str, str]]:
    """(reason, what it says of the pool), in the order of the table in docs/scaling.md."""
    table = DOCS.read_text().split("| reason | the pool |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [re.fullmatch(r"\| (.*?) \| (.*) \|", line) for line in table.splitlines()]
    return [(reason, row[2]) for row in rows if row for reason in re.findall(r"`(\w+)`", row[1])]


def test_the_documentation_has_each_reason_with_its_sentence() -> None:
    assert documented() == list(REASONS.items())
