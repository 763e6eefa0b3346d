"""Entry point of launcher.pyz: configuration -> signals -> probes -> supervisor -> exit code."""

from __future__ import annotations

import os
import signal
import sys

from phasewise_runtime.contract import EXIT_CONFIG
from phasewise_runtime.engine import termination_message
from phasewise_runtime.engine.config import ConfigError
from phasewise_runtime.engine.environment import detect_environment
from phasewise_runtime.engine.process import WATCHED_SIGNALS
from phasewise_runtime.engine.supervisor import Supervisor, config_from, say
from phasewise_runtime.engine.telemetry import Telemetry, serve


def main() -> int:
    environment = detect_environment(os.environ)
    try:
        config = config_from(os.environ)
    except ConfigError as error:
        say(str(error))
        termination_message.write(environment.termination_log, str(error))
        return EXIT_CONFIG
    # Before any thread starts: threads inherit the mask, so that only the supervisor takes these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    telemetry = Telemetry(config)
    supervisor = Supervisor(config, environment, telemetry)
    server = serve(telemetry, config.launcher_port, supervisor.engine_healthy, supervisor.engine_metrics)
    try:
        return supervisor.run()
    finally:
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
