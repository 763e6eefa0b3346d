"""What the launcher finds around it in the container: folders, addresses, CPUs. The edge that reads the environment."""

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
from phasewise_runtime.engine.command import PodPlace

ENV_SCRATCH: Final = "PHASEWISE_SCRATCH_DIR"
ENV_MODELS: Final = "PHASEWISE_MODEL_CACHE_DIR"
ENV_TERMINATION_LOG: Final = "PHASEWISE_TERMINATION_LOG"
ENV_CACHE_SEED: Final = "PHASEWISE_VLLM_CACHE_SEED"
"""Set by an image that carries a ready VLLM_CACHE_ROOT."""

_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Surroundings:
    place: PodPlace
    termination_log: Path
    code: str
    """Where this package came from: the launcher's archive, or a source folder."""
    cache_seed: Path | None


def look_around(environment: Mapping[str, str]) -> Surroundings:
    """Folders may be named in the environment, so that a launcher also runs outside a pod."""
    code = str(Path(phasewise_runtime.__file__).parents[1])
    seed = environment.get(ENV_CACHE_SEED)
    return Surroundings(
        place=PodPlace(
            ip=environment.get(contract.ENV_POD_IP) or "127.0.0.1",
            cpus=usable_cpus(len(os.sched_getaffinity(0)), _read(_CPU_QUOTA)),
            python=sys.executable,
            scratch=environment.get(ENV_SCRATCH) or contract.SCRATCH_DIR,
            models=environment.get(ENV_MODELS) or contract.MODEL_CACHE_DIR,
            plugin_path=code,
        ),
        termination_log=Path(environment.get(ENV_TERMINATION_LOG) or contract.TERMINATION_LOG),
        code=code,
        cache_seed=Path(seed) if seed else None,
    )


def usable_cpus(cores: int, quota: str) -> int:
    """Whole CPUs under the container's limit, at least one: more threads than that only wait for each other."""
    limit, _, period = quota.partition(" ")
    if not limit.isdigit() or not period.strip().isdigit():
        return cores
    return max(1, min(cores, math.floor(int(limit) / int(period))))


def prepare_folders(surroundings: Surroundings, environment: Mapping[str, str]) -> None:
    """Make the engine's writable folders, and fill vLLM's cache from the image's where it carries one."""
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "HF_HOME"):
        Path(environment[name]).mkdir(parents=True, exist_ok=True)
    if surroundings.cache_seed is not None and surroundings.cache_seed.is_dir():
        shutil.copytree(surroundings.cache_seed, environment["VLLM_CACHE_ROOT"], dirs_exist_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
