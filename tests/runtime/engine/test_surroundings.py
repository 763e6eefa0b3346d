"""The launcher reads its container: CPUs under the limit, folders, the cache that an image carries."""

from pathlib import Path

import pytest
from tests.runtime.engine.golden import GOLDEN

from phasewise_runtime.engine.command import engine_command
from phasewise_runtime.engine.surroundings import look_around, prepare_folders, usable_cpus
from phasewise_runtime.model.uri import model_location


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("", 8),
        ("max 100000", 8),
        ("200000 100000", 2),
        ("50000 100000", 1),
        ("250000 100000", 2),
        ("9900000 100000", 8),
    ],
)
def test_threads_fit_under_the_limit(quota: str, cpus: int) -> None:
    assert usable_cpus(8, quota) == cpus


def test_in_a_pod_the_folders_are_the_contracts() -> None:
    found = look_around({"POD_IP": "10.1.2.3"})
    assert (found.place.ip, found.place.scratch, found.place.models) == ("10.1.2.3", "/scratch", "/models")
    assert str(found.termination_log) == "/dev/termination-log"


def test_folders_are_made_and_vllms_cache_is_filled(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    (seed / "modelinfos").mkdir(parents=True)
    (seed / "modelinfos" / "llama.json").write_text("{}")
    found = look_around({"PHASEWISE_SCRATCH_DIR": str(tmp_path / "scratch"), "PHASEWISE_VLLM_CACHE_SEED": str(seed)})
    config = GOLDEN["cpu prefill"]
    command = engine_command(config, model_location(config.model_uri), found.place)
    for _ in range(2):
        prepare_folders(found, command.environment)
    assert (tmp_path / "scratch/cache/vllm/modelinfos/llama.json").is_file()
    assert (tmp_path / "scratch/temporary").is_dir()
