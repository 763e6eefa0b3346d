"""`python -m phasewise_runtime.router`: settings, logging, event loop, server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import uvloop

from phasewise_runtime.router import logs
from phasewise_runtime.router.discovery import in_cluster
from phasewise_runtime.router.server import run
from phasewise_runtime.router.settings import parse


def main(argv: Sequence[str] | None = None) -> int:
    settings = parse(argv)
    if settings.static_pods is None:
        try:
            in_cluster()
        except RuntimeError as e:
            raise SystemExit(f"phasewise-router: {e}") from e
    logs.configure(settings.log_level)
    uvloop.install()
    asyncio.run(run(settings))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
