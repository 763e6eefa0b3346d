"""The demo's live table: 80 columns whatever it shows, and unknown is not zero."""

from __future__ import annotations

from typing import Any

import pytest
from e2e import table

STATUS: dict[str, Any] = {
    "prefill": {"ready": 1, "desired": 1, "summary": "1/1", "reason": "TtftMissed"},
    "decode": {"ready": 1, "desired": 1, "summary": "1/1"},
    "slo": {"ttft": {"target": "3s", "measured": "9s"}, "itl": {"target": "60ms"}},
    "scaling": {
        "decisions": [
            {"time": "2", "role": "decode", "from": 1, "to": 2, "reason": "DecodeLoad", "message": "many streams"},
            {"time": "1", "role": "prefill", "from": 1, "to": 2, "reason": "PrefillLoad", "message": "word " * 60},
        ]
    },
}
LABELS = 'namespace="default",service="quickstart"'
METRICS = {
    f"phasewise_service_ttft_seconds{{{LABELS}}}": 12.34,
    'phasewise_service_itl_seconds{namespace="default",service="other"}': 9.0,
    'phasewise_pool_replicas{namespace="default",role="prefill",service="quickstart",state="desired"}': 2.0,
    'phasewise_pool_replicas{namespace="default",role="prefill",service="quickstart",state="ready"}': 1.0,
}


def rows(status: dict[str, Any] = STATUS, metrics: dict[str, float] = METRICS) -> list[table.Row]:
    return table.rows(status, metrics, "quickstart", "default")


def test_the_operators_metrics_go_before_the_status() -> None:
    prefill, decode = rows()
    assert (prefill.ready, prefill.desired, prefill.measured, prefill.target) == (1, 2, 12.34, 3.0)
    assert (decode.ready, decode.desired, decode.measured, decode.target) == (1, 1, None, 0.06)


def test_lines_of_the_table() -> None:
    assert [table.line(65, row) for row in rows()] == [
        " 1:05  prefill   1/2  TTFT 12.3s!  3s      TtftMissed",
        " 1:05  decode    1/1  ITL -        60ms",
    ]


def test_columns_stand_below_their_heads() -> None:
    line = table.line(0, rows()[0])
    for head, cell in {"pool": "prefill", "latency": "TTFT", "target": "3s ", "why": "TtftMissed"}.items():
        assert table.HEAD.index(head) == line.index(cell)


def test_a_service_without_a_prefill_pool_has_one_row() -> None:
    status = {key: value for key, value in STATUS.items() if key != "prefill"}
    assert [row.role for row in rows(status)] == ["decode"]


@pytest.mark.parametrize("reason", ["", "x" * 200])
@pytest.mark.parametrize("measured", [None, 0.0004, 0.9996, 54.3, 12345.6])
@pytest.mark.parametrize("size", [0, 10000])
def test_no_line_is_longer_than_a_terminal_is_wide(reason: str, measured: float | None, size: int) -> None:
    row = table.Row("prefill", size, size, measured, 600.0, reason)
    assert len(table.line(6000, row)) <= table.COLUMNS


def test_a_change_of_size_is_printed_in_full_over_several_lines() -> None:
    first, second = (table.describe(d) for d in table.decisions(STATUS))
    assert first.split() == ["prefill", "1", "->", "2", "PrefillLoad:", *["word"] * 60]
    assert max(map(len, first.splitlines())) <= table.COLUMNS
    assert second == "       decode 1 -> 2  DecodeLoad: many streams"


@pytest.mark.parametrize(("text", "value"), [("430ms", 0.43), ("1.2s", 1.2), ("5m", 300.0), ("1h", 3600.0)])
def test_durations(text: str, value: float) -> None:
    assert table.seconds(text) == pytest.approx(value)


def test_a_latency_has_three_digits() -> None:
    assert [table.format_seconds(v) for v in (None, 0.0598, 0.9996, 1.0, 12.345)] == [
        "-",
        "60ms",
        "1000ms",
        "1s",
        "12.3s",
    ]
