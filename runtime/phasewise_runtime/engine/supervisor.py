"""Supervises one engine pod through its phases: preflight, model, engine, serving, drain, end.

The launcher is not in the data path. It starts vLLM once, never again: when vLLM ends, so does the pod, with the
reason in its termination message, and Kubernetes starts a new container.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Final

from phasewise_runtime import contract
from phasewise_runtime.contract import EXIT_CONFIG, EXIT_CUT_SHORT, EXIT_ENGINE, EXIT_OK, EXIT_STARTUP
from phasewise_runtime.engine import termination_message
from phasewise_runtime.engine.command import STOP_SECONDS, EngineCommand, engine_command, shutdown_timeout
from phasewise_runtime.engine.config import ConfigError, EngineConfig
from phasewise_runtime.engine.drain_state import DrainState, IdleProbe, parse_drain_state
from phasewise_runtime.engine.environment import LauncherEnvironment, ModelError, hub_token, prepare_folders
from phasewise_runtime.engine.failure_cause import refused_arguments
from phasewise_runtime.engine.process import WATCHED_SIGNALS, Child, Reaper, adopt_orphans
from phasewise_runtime.engine.telemetry import DRAINING, ENGINE, MODEL, SERVING, Telemetry
from phasewise_runtime.model_uri import ModelUriError, model_location

_TICK_SECONDS: Final = 0.5
_KILL_GRACE_SECONDS: Final = 2
_PREFLIGHT_SECONDS: Final = 300
_MAX_BYTES: Final = 8 * 2**20
"""Of an answer of the engine: its exposition has a hundredth of it."""
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Reaches the engine directly: a proxy in the pod's environment is ignored."""


class LaunchError(Exception):
    """The launcher must end with this exit code and reason."""

    def __init__(self, code: int, reason: str, lines: list[str] | None = None) -> None:
        super().__init__(reason)
        self.code, self.reason, self.lines = code, reason, lines or []


class _Stopped(Exception):  # noqa: N818 - not an error: TERM came
    """TERM came before the engine served, so there are no requests to wait for."""


class Supervisor:
    def __init__(self, config: EngineConfig, environment: LauncherEnvironment, telemetry: Telemetry) -> None:
        self._config = config
        self._environment = environment
        self._telemetry = telemetry
        self._reaper = Reaper()
        self._child: Child | None = None
        self._terms = 0
        self._secrets: list[str] = []

    def engine_healthy(self) -> bool:
        return self._get("/health") is not None

    def engine_metrics(self) -> bytes | None:
        """The engine's exposition; None where it does not answer completely."""
        return self._get(contract.PATH_METRICS)

    def run(self) -> int:
        """Run all phases; returns the exit code, and writes the termination message where it is not 0."""
        try:
            self._start()
            self._serve_until_term()
            self._drain()
        except _Stopped:
            say("TERM before the engine served: ending at once")
        except LaunchError as error:
            return self._fail(error)
        finally:
            self._kill_engine()
        return EXIT_OK

    # --- phases --------------------------------------------------------------------------------------------
    def _start(self) -> None:
        adopt_orphans()
        try:
            model = model_location(self._config.model_uri)
            command = engine_command(self._config, model, self._environment.pod)
            variables = command.over(os.environ)
            prepare_folders(self._environment, variables)
            self._preflight(variables)
            self._enter(MODEL)
            token = hub_token(model, self._config.secrets_dir)
        except (ConfigError, ModelUriError, ModelError) as error:
            raise LaunchError(EXIT_CONFIG, str(error)) from None
        except OSError as error:
            raise LaunchError(EXIT_CONFIG, f"cannot prepare the pod's folders: {error}") from None
        if token is not None:
            self._secrets.append(token)
            variables["HF_TOKEN"] = token
        self._enter(ENGINE)
        self._start_engine(command, variables)
        self._enter(SERVING)

    def _preflight(self, variables: Mapping[str, str]) -> None:
        path = ":".join(filter(None, (self._environment.code, os.environ.get("PYTHONPATH"))))
        argv = [sys.executable, "-m", "phasewise_runtime.engine.preflight", self._environment.pod.scratch]
        child = self._spawn(argv, {**variables, "PYTHONPATH": path})
        code = self._wait(lambda: self._reaper.exit_code(child), _PREFLIGHT_SECONDS)
        lines = child.last_lines()
        if code is None:
            raise LaunchError(EXIT_STARTUP, f"preflight did not end within {_PREFLIGHT_SECONDS} s", lines)
        self._child = None
        if code != 0 or not lines:
            raise LaunchError(EXIT_ENGINE, f"preflight {_ending(code)}", lines)
        if problems := json.loads(lines[-1]):
            raise LaunchError(EXIT_CONFIG, "\n".join(problems))

    def _start_engine(self, command: EngineCommand, variables: Mapping[str, str]) -> None:
        say(f"starting {' '.join(command.argv)}")
        self._spawn(command.argv, variables)
        if self._wait(lambda: self.engine_healthy() or None, self._config.startup_seconds, watch=True) is None:
            seconds = self._config.startup_seconds
            raise LaunchError(EXIT_STARTUP, f"the engine did not answer /health within {seconds:g} s", self._lines())

    def _serve_until_term(self) -> None:
        while self._terms == 0:
            self._tick()
            self._watch_engine()

    def _drain(self) -> None:
        self._enter(DRAINING)
        self._wait(lambda: None, self._config.settle_seconds, watch=True, until_terms=2)  # routers learn of it
        allowed = shutdown_timeout(self._config)
        say(f"draining: TERM reaches the engine when it is idle, in {allowed} s at the latest")
        idle = self._wait(IdleProbe(self._drain_state), allowed, watch=True, until_terms=2)
        state = self._drain_state()
        self._stop_engine(_KILL_GRACE_SECONDS if idle is None else STOP_SECONDS)
        if idle is None:
            self._telemetry.drains_cut_short.inc()
            raise LaunchError(EXIT_CUT_SHORT, f"stopped with unfinished requests: {state or 'unknown how many'}")

    def _stop_engine(self, seconds: float) -> None:
        if (child := self._child) is not None:
            child.signal(signal.SIGTERM)
            self._wait(lambda: self._reaper.exit_code(child), seconds, until_terms=sys.maxsize)

    # --- parts ---------------------------------------------------------------------------------------------
    def _spawn(self, argv: list[str] | tuple[str, ...], variables: Mapping[str, str]) -> Child:
        self._child = Child(argv, variables)
        return self._child

    def _wait(
        self,
        condition: Callable[[], object],
        seconds: float,
        *,
        watch: bool = False,
        until_terms: int = 1,
    ) -> object:
        """The condition's first value that is not None; None when the time is over or the last TERM came."""
        deadline = time.monotonic() + seconds
        while (value := condition()) is None:
            if watch:
                self._watch_engine()
            if self._terms >= until_terms:
                if until_terms == 1:
                    raise _Stopped
                return None
            if time.monotonic() >= deadline:
                return None
            self._tick()
        return value

    def _tick(self) -> None:
        """Sleep a little, or until a signal; the heartbeat of /livez."""
        self._telemetry.beat()
        received = signal.sigtimedwait(WATCHED_SIGNALS, _TICK_SECONDS)
        if received is not None and received.si_signo != signal.SIGCHLD:
            self._terms += 1

    def _watch_engine(self) -> None:
        child = self._child
        if child is not None and (code := self._reaper.exit_code(child)) is not None:
            phase = self._telemetry.phase
            # Before the cause is cut to a length: the rest of a secret would not be known as one.
            lines = [termination_message.redact(line, self._secrets) for line in child.last_lines()]
            ending = f"the engine {_ending(code)} in phase {phase}"
            refused = refused_arguments(lines) if phase == ENGINE and code > 0 else ""
            if refused:
                raise LaunchError(EXIT_CONFIG, f"spec.engine.args: the engine refuses them: {refused}; {ending}", lines)
            raise LaunchError(EXIT_ENGINE, ending, lines)

    def _drain_state(self) -> DrainState | None:
        exposition = self.engine_metrics()
        return None if exposition is None else parse_drain_state(exposition.decode(errors="replace"))

    def _get(self, path: str) -> bytes | None:
        """None where there is no answer, an error, or an answer that is cut off or larger than _MAX_BYTES."""
        try:
            with _DIRECT.open(f"http://127.0.0.1:{self._config.engine_port}{path}", timeout=5) as answer:
                body = answer.read(_MAX_BYTES)
                return None if answer.read(1) or answer.length else body
        except (OSError, HTTPException, urllib.error.URLError):
            return None

    def _enter(self, phase: str) -> None:
        before, seconds = self._telemetry.phase, self._telemetry.enter(phase)
        say(f"{before} took {seconds:.1f} s; now {phase}")

    def _lines(self) -> list[str]:
        return self._child.lines if self._child is not None else []

    def _fail(self, error: LaunchError) -> int:
        for line in error.reason.splitlines():
            say(termination_message.redact(line, self._secrets))
        message = termination_message.compose(error.reason, error.lines, self._secrets)
        termination_message.write(Path(self._environment.termination_log), message)
        return error.code

    def _kill_engine(self) -> None:
        """Nothing of the engine's process group outlives the launcher."""
        child = self._child
        if child is not None:
            child.signal(signal.SIGKILL, group=True)


def _ending(code: object) -> str:
    if isinstance(code, int) and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def say(text: str) -> None:
    print(f"phasewise: {text}", flush=True)


def config_from(variables: Mapping[str, str]) -> EngineConfig:
    text = variables.get(contract.ENV_ENGINE_CONFIG)
    if not text:
        raise ConfigError(f"{contract.ENV_ENGINE_CONFIG} is not set: the operator sets it in engine pods")
    return EngineConfig.from_json(text)
