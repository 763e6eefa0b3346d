"""The launcher's state as probes and metrics on its port, and the engine's metrics after its own.

`Telemetry` is what the supervisor reports into; the HTTP server reads it from its own threads. Of the engine it passes
on /metrics and nothing else: who may scrape a pod need not be able to ask its engine for tokens.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from phasewise_runtime import contract
from phasewise_runtime.engine.config import EngineConfig

PREFLIGHT: Final = "preflight"
MODEL: Final = "model"
ENGINE: Final = "engine"
SERVING: Final = "serving"
DRAINING: Final = "draining"
PHASES: Final = (PREFLIGHT, MODEL, ENGINE, SERVING, DRAINING)

_STUCK_SECONDS: Final = 60
_IDLE_SECONDS: Final = 10
"""An idle connection is closed after so long: more than the operator keeps one, so that it is not closed under it."""


class Telemetry:
    """The phase of the pod and the seconds of each phase; a heartbeat of the supervisor's loop."""

    def __init__(self, config: EngineConfig) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Gauge(
            "phasewise_launcher_phase_seconds", "Seconds spent in each phase so far", ["phase"], registry=self.registry
        )
        self._current = Gauge(
            "phasewise_launcher_phase", "1 for the phase the pod is in", ["phase"], registry=self.registry
        )
        self._info = Gauge(
            "phasewise_launcher_info",
            "Service, role and model of this pod",
            ["service", "role", "model"],
            registry=self.registry,
        )
        self.drains_cut_short = Counter(
            "phasewise_launcher_drains_cut_short",
            "Drains that ended before the last request had",
            registry=self.registry,
        )
        self._info.labels(config.service, config.role, config.model_name).set(1)
        self.phase = PREFLIGHT
        self.started = False
        self.draining = False
        self._since = self._beat = time.monotonic()
        self.enter(PREFLIGHT)

    def enter(self, phase: str) -> float:
        """Begin a phase; returns the seconds that the one before took."""
        now = time.monotonic()
        seconds = now - self._since
        self._seconds.labels(self.phase).set(seconds)
        self.phase, self._since = phase, now
        for name in PHASES:
            self._current.labels(name).set(name == phase)
        self.started = self.started or phase == SERVING
        self.draining = self.draining or phase == DRAINING
        self.beat()
        return seconds

    def beat(self) -> None:
        self._beat = time.monotonic()

    @property
    def alive(self) -> bool:
        return time.monotonic() - self._beat < _STUCK_SECONDS

    def exposition(self, engine: bytes | None) -> bytes:
        """`engine`: the engine's exposition, None where it could not be read. It is not parsed: its families have other
        names, so the two together are one exposition."""
        self._seconds.labels(self.phase).set(time.monotonic() - self._since)
        name, value = contract.METRIC_ENGINE_UP, int(engine is not None)
        up = f"# HELP {name} 1 if the engine's metrics follow\n# TYPE {name} gauge\n{name} {value}\n"
        return generate_latest(self.registry) + up.encode() + (engine or b"")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that did not wait for its answer is no error of ours, and no traceback in the engine's log."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]


def serve(
    telemetry: Telemetry, port: int, engine_healthy: Callable[[], bool], engine_metrics: Callable[[], bytes | None]
) -> ThreadingHTTPServer:
    """Answer probes and metrics until the process ends; the caller keeps the server only to close it."""

    def ready() -> tuple[bool, str]:
        if telemetry.draining:
            return False, "draining"
        if not telemetry.started:
            return False, f"starting: {telemetry.phase}"
        return engine_healthy(), "engine health"

    probes: Mapping[str, Callable[[], tuple[bool, str]]] = {
        contract.PATH_STARTED: lambda: (telemetry.started, telemetry.phase),
        contract.PATH_LIVE: lambda: (telemetry.alive, "supervisor loop"),
        contract.PATH_READY: ready,
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps the connection between two scrapes
        timeout = _IDLE_SECONDS
        disable_nagle_algorithm = True  # the body would wait for the acknowledgement of the head, some 40 ms

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == contract.PATH_METRICS:
                self._answer(200, telemetry.exposition(engine_metrics()), CONTENT_TYPE_LATEST)
            elif probe := probes.get(path):
                good, text = probe()
                self._answer(200 if good else 503, f"{'ok' if good else 'not ok'}: {text}\n".encode(), "text/plain")
            else:
                self._answer(404, b"not found\n", "text/plain")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Probes come every few seconds: no line for each."""

    server = _Server(("", port), Handler)
    threading.Thread(target=server.serve_forever, name="launcher-http", daemon=True).start()
    return server
