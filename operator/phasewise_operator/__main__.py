"""Entry point: settings, logging, signals, and the operator's life (leader.py)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from phasewise_operator.kube import Kube
from phasewise_operator.kube_errors import KubeError
from phasewise_operator.leader import Operator
from phasewise_operator.lease_thread import LeaseThread
from phasewise_operator.metrics import Metrics
from phasewise_operator.settings import Settings, SettingsError


async def serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics()
    kube = await Kube.connect()
    try:
        await Operator(settings, kube, metrics, stop, LeaseThread(settings, metrics)).run()
    finally:
        await kube.close()


def main() -> int:
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        print(f"phasewise-operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=settings.logging_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(max(settings.logging_level, logging.WARNING))
    try:
        asyncio.run(serve(settings))
    except (KubeError, OSError) as error:
        print(f"phasewise-operator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
