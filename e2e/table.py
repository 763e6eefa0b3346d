"""The live table of the demo: each pool's size and latency against its target, in 80 columns. Pure.

A row is about one pool: the time, replicas ready and desired, TTFT (prefill) or ITL (decode) at the quantile that the
target is for, whether the target is missed (!), and the reason for the pool's size. A change of size is printed with
its message.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import durationpy

from phasewise_runtime import contract

COLUMNS = 80
INDENT = " " * 7
LATENCY = {contract.PREFILL: "ttft", contract.DECODE: "itl"}
HEAD = f"{'time':>5}  {'pool':<7} {'ready':>5}  {'latency':<12} {'target':<6}  why"


@dataclass(frozen=True)
class Row:
    role: str
    ready: int
    desired: int
    measured: float | None
    """Seconds; None where it is not known."""
    target: float
    reason: str

    @property
    def in_target(self) -> bool | None:
        return None if self.measured is None else self.measured <= self.target


def rows(status: Mapping[str, Any], metrics: Mapping[str, float], service: str, namespace: str) -> list[Row]:
    """From the status, and from the operator's metrics, which are fresher. Pools that do not exist have no row."""
    return [_row(role, status, metrics, service, namespace) for role in contract.ENGINE_ROLES if role in status]


def _row(role: str, status: Mapping[str, Any], metrics: Mapping[str, float], service: str, namespace: str) -> Row:
    def live(name: str, **labels: str) -> float | None:
        return find(metrics, name, namespace=namespace, service=service, **labels)

    pool, slo = status[role], status["slo"][LATENCY[role]]
    desired = live("phasewise_pool_replicas", role=role, state="desired")
    return Row(
        role=role,
        ready=pool["ready"],
        desired=pool["desired"] if desired is None else int(desired),
        measured=live(f"phasewise_service_{LATENCY[role]}_seconds"),
        target=seconds(slo["target"]),
        reason=pool.get("reason") or "",
    )


def decisions(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Changes of size that the status still has, oldest first."""
    return list(reversed(status.get("scaling", {}).get("decisions", [])))


def describe(decision: Mapping[str, Any]) -> str:
    """A change of size with its message, which has the figures that decided it."""
    change = f"{decision['role']} {decision['from']} -> {decision['to']}"
    text = f"{change}  {decision['reason']}: {decision['message']}"
    return textwrap.fill(text, COLUMNS, initial_indent=INDENT, subsequent_indent=INDENT)


def find(samples: Mapping[str, float], name: str, **labels: str) -> float | None:
    """The sample of a name with these labels."""
    pairs = [f'{key}="{value}"' for key, value in labels.items()]
    series = ((key, value) for key, value in samples.items() if key.partition("{")[0] == name)
    return next((value for key, value in series if all(pair in key for pair in pairs)), None)


def seconds(duration: str) -> float:
    """Seconds of a duration as Kubernetes writes it: 430ms, 1.2s, 1m30s. Raises ValueError for anything else."""
    try:
        return durationpy.from_str(duration).total_seconds()
    except durationpy.DurationError as error:
        raise ValueError(f"{duration!r} is not a duration such as 430ms") from error


def format_seconds(duration: float | None) -> str:
    if duration is None:
        return "-"
    return f"{1000 * duration:.0f}ms" if duration < 1 else f"{duration:.3g}s"


def line(clock: float, row: Row) -> str:
    minutes, rest = divmod(int(clock), 60)
    latency = f"{LATENCY[row.role].upper()} {format_seconds(row.measured)}{'!' if row.in_target is False else ''}"
    size = f"{row.ready}/{row.desired}"
    text = (
        f"{minutes:>2}:{rest:02}  {row.role:<7} {size:>5}  {latency:<12} {format_seconds(row.target):<6}  {row.reason}"
    )
    return cut(text.rstrip())


def cut(text: str, columns: int = COLUMNS) -> str:
    return text if len(text) <= columns else f"{text[: columns - 3].rstrip()}..."
