"""What operator tests share: a service as the API server returns it, its context, and waiting for a condition."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol, TypeVar

import pytest

from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_operator.render.context import Context, Images, Permissions, PodPeer

Spec = dict[str, Any]
MakeContext = Callable[..., Context]
DEADLINE = 5.0
READERS = (PodPeer("phasewise", {"app.kubernetes.io/name": "phasewise-operator"}), PodPeer("monitoring"))
FULL_TEMPLATES = Permissions(safe_templates=False, metrics_readers=READERS)
"""How templates are merged is tested with all that they may hold."""
IMAGES = Images("phasewise/runtime:1", "vllm/vllm-openai:v0.32.0", "IfNotPresent")


def minimal_spec(**changes: Any) -> Spec:
    spec: Spec = {
        "model": {"uri": "hf://org/llama", "name": "llama"},
        "slo": {"ttft": "500ms", "itl": "40ms"},
        "prefill": {},
        "decode": {},
    }
    spec.update(changes)
    return {key: value for key, value in spec.items() if value is not None}


@pytest.fixture
def make_context() -> MakeContext:
    def make(name: str = "chat", permissions: Permissions = FULL_TEMPLATES, **changes: Any) -> Context:
        spec = InferenceServiceSpec.model_validate(minimal_spec(**changes))
        return Context("default", name, f"uid-{name}", spec, IMAGES, permissions=permissions)

    return make


async def until(what: str, probe: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait for a condition, in the event loop of the test; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline, f"{seconds} s have passed without: {what}"
        await asyncio.sleep(0.001)


class Runs(Protocol):
    async def run(self) -> None:
        """Until it is cancelled."""
        ...


R = TypeVar("R", bound=Runs)


@contextlib.asynccontextmanager
async def running(worker: R) -> AsyncGenerator[R]:
    """Its `run` goes on beside the block, and must not have ended with it."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
