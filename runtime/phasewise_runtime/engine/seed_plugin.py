"""A vLLM plugin for engines on CPU: a request with a seed survives a prompt that is computed in pieces.

vLLM samples a token after each piece of a prompt and drops it. It then sets the random generator of the request back
by moving its offset, which only CUDA generators have: on CPU that ends the engine process, and every request in it
(`GPUModelRunner._bookkeeping_sync`, as of 0.32). Here a generator is kept out of the batch while the token that is
sampled will be dropped. So it is not advanced, as on a GPU: a seed gives the same tokens however its prompt is cut.

vLLM finds the plugin as it finds `nixl_plugin`: on CPU only.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

RUNNER_MODULE: Final = "vllm.v1.worker.cpu_model_runner"
RUNNER_CLASS: Final = "CPUModelRunner"
PATCHED_METHODS: Final = ("_sample", "_bookkeeping_sync")


def register() -> None:
    """Patch the CPU model runner, at once or when it is imported: only the engine's own process imports it."""
    if loaded := sys.modules.get(RUNNER_MODULE):
        keep_generators(loaded)
    elif not any(isinstance(finder, _PatchOnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PatchOnImport())


class _PatchOnImport:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == RUNNER_MODULE else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            keep_generators(module)

        spec.loader.exec_module = run_and_patch
        return spec


def keep_generators(module: ModuleType) -> None:
    """Patch the runner of this module. May be called again; a vLLM without these methods is left as it is."""
    runner = getattr(module, RUNNER_CLASS, None)
    known = all(hasattr(runner, name) for name in PATCHED_METHODS)
    if runner is None or not known or hasattr(runner, "phasewise_keeps_generators"):
        return
    runner.phasewise_keeps_generators = True
    for name in PATCHED_METHODS:
        setattr(runner, name, _without_unfinished_prompts(getattr(runner, name)))


def _without_unfinished_prompts(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(runner: Any, *args: Any, **kwargs: Any) -> Any:
        with _unfinished_prompts_without_generator(runner):
            return method(runner, *args, **kwargs)

    return call


@contextlib.contextmanager
def _unfinished_prompts_without_generator(runner: Any) -> Generator[None]:
    generators: dict[int, Any] = {}
    try:
        generators, mask = runner.input_batch.generators, runner.discard_request_mask.np
        dropped = [i for i in range(runner.input_batch.num_reqs) if mask[i] and i in generators]
    except AttributeError:
        # Another vLLM, which keeps them elsewhere: it works as without this plugin.
        dropped = []
    kept = {i: generators.pop(i) for i in dropped}
    try:
        yield
    finally:
        generators.update(kept)
