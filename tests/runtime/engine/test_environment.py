"""The launcher's environment: CPUs under the limit, folders, the cache of an image, the token of the mounted secret."""

from pathlib import Path

import pytest
from tests.runtime.engine.golden import GOLDEN

from phasewise_runtime.engine.command import engine_command
from phasewise_runtime.engine.environment import ModelError, detect_environment, hub_token, prepare_folders, usable_cpus
from phasewise_runtime.model_uri import model_location

REMOTE = model_location("hf://org/name")


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
    found = detect_environment({"POD_IP": "10.1.2.3"})
    assert (found.pod.ip, found.pod.scratch, found.pod.models) == ("10.1.2.3", "/scratch", "/models")
    assert str(found.termination_log) == "/dev/termination-log"


def test_folders_are_made_and_vllms_cache_is_filled(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    (seed / "modelinfos").mkdir(parents=True)
    (seed / "modelinfos" / "llama.json").write_text("{}")
    found = detect_environment(
        {"PHASEWISE_SCRATCH_DIR": str(tmp_path / "scratch"), "PHASEWISE_VLLM_CACHE_SEED": str(seed)}
    )
    config = GOLDEN["cpu prefill"]
    command = engine_command(config, model_location(config.model_uri), found.pod)
    for _ in range(2):
        prepare_folders(found, command.environment)
    assert (tmp_path / "scratch/cache/vllm/modelinfos/llama.json").is_file()
    assert (tmp_path / "scratch/temporary").is_dir()


@pytest.mark.parametrize("key", ["token", "HF_TOKEN"])
def test_the_token_is_read_from_either_key(tmp_path: Path, key: str) -> None:
    (tmp_path / key).write_text("hf_secret\n")
    assert hub_token(REMOTE, str(tmp_path)) == "hf_secret"


def test_a_local_model_needs_no_token(tmp_path: Path) -> None:
    assert hub_token(model_location("file:///opt/models/tiny"), str(tmp_path)) is None


def test_without_a_secret_the_repository_is_open() -> None:
    assert hub_token(REMOTE, None) is None


def test_a_secret_without_the_key_says_which_key(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no key token or HF_TOKEN"):
        hub_token(REMOTE, str(tmp_path))


def test_an_empty_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ModelError, match="empty key token"):
        hub_token(REMOTE, str(tmp_path))
