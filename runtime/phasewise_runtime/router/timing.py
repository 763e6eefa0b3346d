"""The moments of a request, and the Server-Timing header made of them. No I/O but the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass


def now() -> float:
    """The clock of all measuring; the event loop's own is rounded to milliseconds."""
    return time.monotonic()


@dataclass(slots=True)
class Timing:
    """Moments of a request, on the clock of `now`."""

    read: float
    admitted: float = 0.0
    prefill: float | None = None
    """Seconds of the prefill request whose KV was used."""
    decode_sent: float = 0.0


def server_timing(timing: Timing, first_at: float | None) -> str:
    """The phases in ms, as a Server-Timing header; a phase that was not seen is left out."""
    phases = {
        "queue": timing.admitted - timing.read,
        "prefill": timing.prefill,
        "decode": None if first_at is None else first_at - timing.decode_sent,
    }
    return ", ".join(f"{k};dur={v * 1000:.1f}" for k, v in phases.items() if v is not None)
