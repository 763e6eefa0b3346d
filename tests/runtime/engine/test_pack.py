"""launcher.pyz: equal bytes for equal sources, runs by itself, and carries the engine's plugin."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from phasewise_runtime.engine.pack import pack


def run(archive: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(archive), "PYTHONSAFEPATH": "1"}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


def test_equal_sources_give_equal_bytes(tmp_path: Path) -> None:
    pack(tmp_path / "one.pyz")
    pack(tmp_path / "deep" / "two.pyz")
    assert (tmp_path / "one.pyz").read_bytes() == (tmp_path / "deep" / "two.pyz").read_bytes()


def test_it_holds_the_launcher_and_nothing_of_the_router(tmp_path: Path) -> None:
    pack(tmp_path / "launcher.pyz")
    names = zipfile.ZipFile(tmp_path / "launcher.pyz").namelist()
    assert {"__main__.py", "phasewise_runtime/contract.py", "phasewise_runtime/model_uri.py"} <= set(names)
    assert not [name for name in names if "router" in name]


def test_without_a_configuration_it_ends_with_a_reason(tmp_path: Path) -> None:
    pack(tmp_path / "launcher.pyz")
    done = run(tmp_path / "launcher.pyz", str(tmp_path / "launcher.pyz"))
    assert done.returncode == 78
    assert "PHASEWISE_ENGINE is not set: the operator sets it" in done.stdout


def test_on_the_path_it_shows_vllm_our_plugins(tmp_path: Path) -> None:
    pack(tmp_path / "launcher.pyz")
    code = (
        "from importlib.metadata import entry_points as e; print([p.load() for p in e(group='vllm.general_plugins')])"
    )
    done = run(tmp_path / "launcher.pyz", "-c", code)
    assert done.stdout.count("function register") == 2, done.stderr
