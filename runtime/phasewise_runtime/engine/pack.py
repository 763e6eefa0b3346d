"""Build launcher.pyz, the archive that an init container brings into an engine pod: python -m …engine.pack FILE

It holds the modules of phasewise_runtime that the launcher imports, and the entry points by which vLLM finds our
plugins when the archive is on PYTHONPATH. Equal sources give equal bytes.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import phasewise_runtime

_MAIN: Final = "import sys\n\nfrom phasewise_runtime.engine.__main__ import main\n\nsys.exit(main())\n"
_DIST_INFO: Final = "phasewise_engine_plugin-0.1.dist-info"
_METADATA: Final = "Metadata-Version: 2.1\nName: phasewise-engine-plugin\nVersion: 0.1\n"
_ENTRY_POINTS: Final = """[vllm.general_plugins]
phasewise_nixl = phasewise_runtime.engine.nixl_plugin:register
phasewise_seed = phasewise_runtime.engine.seed_plugin:register
"""
_SOURCES: Final = ("__init__.py", "contract.py", "model_uri.py", "engine/*.py")
_SHEBANG: Final = b"#!/usr/bin/env python3\n"


def members(package: Path) -> Iterator[tuple[str, str]]:
    yield "__main__.py", _MAIN
    yield f"{_DIST_INFO}/METADATA", _METADATA
    yield f"{_DIST_INFO}/entry_points.txt", _ENTRY_POINTS
    for pattern in _SOURCES:
        for path in sorted(package.glob(pattern)):
            yield f"{package.name}/{path.relative_to(package).as_posix()}", path.read_text(encoding="utf-8")


def pack(target: Path) -> None:
    package = Path(phasewise_runtime.__file__).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(_SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in members(package):
                # A ZipInfo without a date is dated 1980: the archive does not depend on when it is built.
                archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    target.chmod(0o755)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m phasewise_runtime.engine.pack FILE")
    pack(Path(sys.argv[1]))
