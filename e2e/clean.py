"""`make clean`: what `make down` leaves, the build cache, goes too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from e2e import cluster
from e2e.cluster import ClusterError
from e2e.cluster.settings import settings_from


def main() -> int:
    try:
        cluster.down()
    except ClusterError as error:
        print(f"clean: {error}", file=sys.stderr)
        return 1
    cache = settings_from(os.environ, Path.home()).cache
    print(f"clean: removing {cache}", file=sys.stderr)
    # Layers that a build left mounted would be emptied instead of removed.
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{cache}/")), reverse=True):
        subprocess.run(["umount", mount], check=True)
    if cache.exists():
        shutil.rmtree(cache)
    return 0


if __name__ == "__main__":
    sys.exit(main())
