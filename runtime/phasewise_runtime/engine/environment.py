"""The launcher's environment in its container: folders, addresses, CPUs, the mounted token. Does the I/O to read it."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import phasewise_runtime
from phasewise_runtime import contract
from phasewise_runtime.engine.command import PodEnvironment
from phasewise_runtime.model_uri import ModelLocation

ENV_SCRATCH: Final = "PHASEWISE_SCRATCH_DIR"
ENV_MODELS: Final = "PHASEWISE_MODEL_CACHE_DIR"
ENV_TERMINATION_LOG: Final = "PHASEWISE_TERMINATION_LOG"
ENV_CACHE_SEED: Final = "PHASEWISE_VLLM_CACHE_SEED"
"""Set by an image that carries a ready VLLM_CACHE_ROOT."""

TOKEN_KEYS: Final = ("token", "HF_TOKEN")
"""Keys of the secret that may hold the Hugging Face token, as files of its folder."""

_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


class ModelError(Exception):
    """The model cannot be reached; the message says what to change."""


@dataclass(frozen=True)
class LauncherEnvironment:
    pod: PodEnvironment
    termination_log: Path
    code: str
    """Path of this package: the launcher's archive, or a source folder."""
    cache_seed: Path | None


def detect_environment(variables: Mapping[str, str]) -> LauncherEnvironment:
    """Read the container. Environment variables may name other folders, so that a launcher also runs outside a pod."""
    code = str(Path(phasewise_runtime.__file__).parents[1])
    seed = variables.get(ENV_CACHE_SEED)
    return LauncherEnvironment(
        pod=PodEnvironment(
            ip=variables.get(contract.ENV_POD_IP) or "127.0.0.1",
            cpus=usable_cpus(len(os.sched_getaffinity(0)), _read(_CPU_QUOTA)),
            python=sys.executable,
            scratch=variables.get(ENV_SCRATCH) or contract.SCRATCH_DIR,
            models=variables.get(ENV_MODELS) or contract.MODEL_CACHE_DIR,
            plugin_path=code,
        ),
        termination_log=Path(variables.get(ENV_TERMINATION_LOG) or contract.TERMINATION_LOG),
        code=code,
        cache_seed=Path(seed) if seed else None,
    )


def usable_cpus(cores: int, quota: str) -> int:
    """CPUs under the container's limit, rounded down, at least one: more threads would wait for each other."""
    limit, _, period = quota.partition(" ")
    if not limit.isdigit() or not period.strip().isdigit():
        return cores
    return max(1, min(cores, math.floor(int(limit) / int(period))))


def prepare_folders(environment: LauncherEnvironment, variables: Mapping[str, str]) -> None:
    """Make the engine's writable folders, and fill vLLM's cache from the image's where it has one."""
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "HF_HOME"):
        Path(variables[name]).mkdir(parents=True, exist_ok=True)
    if environment.cache_seed is not None and environment.cache_seed.is_dir():
        shutil.copytree(environment.cache_seed, variables["VLLM_CACHE_ROOT"], dirs_exist_ok=True)


def hub_token(location: ModelLocation, secrets_dir: str | None) -> str | None:
    """The Hugging Face token of the mounted secret; None for a local model or without a secret. May raise ModelError.

    It goes into the engine's own environment and nowhere else: the engine fetches its weights itself.
    """
    if location.local or secrets_dir is None:
        return None
    for key in TOKEN_KEYS:
        file = Path(secrets_dir) / key
        if file.is_file():
            if token := _read_token(file):
                return token
            raise ModelError(f"the secret of spec.model.secretRef has an empty key {key}: put the token there")
    keys = " or ".join(TOKEN_KEYS)
    raise ModelError(f"the secret of spec.model.secretRef has no key {keys}: put the Hugging Face token under it")


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ModelError(f"the secret of spec.model.secretRef cannot be read: {error.strerror}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
