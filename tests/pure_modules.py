"""`python -m tests.pure_modules`: the files of the pure modules, as coverage's --include takes them.

The list is the first import contract in pyproject.toml.
"""

from __future__ import annotations

from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]


def pure_modules() -> list[str]:
    """Dotted names of modules and packages that do no I/O."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["name"].startswith("Pure modules"))
    return contract["source_modules"]


def path_of(module: str) -> Path:
    """The file of a module, or the folder of a package. Raises FileNotFoundError where there is neither."""
    top = "operator" if module.startswith("phasewise_operator") else "runtime"
    folder = ROOT.joinpath(top, *module.split("."))
    found = folder if folder.is_dir() else folder.with_suffix(".py")
    if not found.exists():
        raise FileNotFoundError(f"{module} is in pyproject.toml's list of pure modules, and {found} does not exist")
    return found


if __name__ == "__main__":
    files = [path_of(module).relative_to(ROOT) for module in pure_modules()]
    print(",".join(str(f) if f.suffix else f"{f}/*" for f in files))
