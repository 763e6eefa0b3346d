"""On CPU a seeded request is not in the batch while the token that is sampled will be dropped."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from phasewise_runtime.engine import seed_plugin
from phasewise_runtime.engine.seed_plugin import RUNNER_MODULE, keep_generators, register

RUNNER = """
class CPUModelRunner:
    def __init__(self, batch, mask):
        self.input_batch, self.discard_request_mask, self.seen = batch, mask, []

    def _sample(self, logits, metadata=None):
        self.seen.append(dict(self.input_batch.generators))
        return logits

    def _bookkeeping_sync(self):
        self.seen.append(dict(self.input_batch.generators))
        raise RuntimeError("as any method may")
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with vLLM's names; no import hook of ours is left behind."""
    package = tmp_path / "vllm" / "v1" / "worker"
    package.mkdir(parents=True)
    (package / "cpu_model_runner.py").write_text(RUNNER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def runner_of(module: ModuleType) -> SimpleNamespace:
    """Requests 0 and 2 of 3 have a seed; the prompt of 0 is not complete. Row 3 is left from an earlier batch."""
    batch = SimpleNamespace(num_reqs=3, generators={0: "a", 2: "b"})
    return module.CPUModelRunner(batch, SimpleNamespace(np=[True, True, False, True]))


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("imported_before", [True, False])
def test_a_generator_is_out_of_the_batch_while_its_token_will_be_dropped(imported_before: bool) -> None:
    if imported_before:
        import_module(RUNNER_MODULE)
    register()
    register()
    runner = runner_of(import_module(RUNNER_MODULE))
    assert runner._sample("logits", metadata=None) == "logits"
    assert runner.input_batch.generators == {0: "a", 2: "b"}
    with pytest.raises(RuntimeError, match="as any"):
        runner._bookkeeping_sync()
    assert runner.input_batch.generators == {0: "a", 2: "b"}
    assert runner.seen == [{2: "b"}, {2: "b"}]


@pytest.mark.usefixtures("vllm")
def test_registering_imports_nothing_of_vllm() -> None:
    register()
    assert not [name for name in sys.modules if name.split(".")[0] == "vllm"]
    assert len([f for f in sys.meta_path if isinstance(f, seed_plugin._PatchOnImport)]) == 1


def test_a_vllm_without_these_methods_is_left_as_it_is() -> None:
    other = type("CPUModelRunner", (), {"_sample": lambda self: None})
    before = dict(vars(other))
    keep_generators(ModuleType("empty"))
    module = ModuleType("other")
    module.CPUModelRunner = other  # type: ignore[attr-defined]
    keep_generators(module)
    assert dict(vars(other)) == before


@pytest.mark.parametrize("absent", ["discard_request_mask", "input_batch"])
def test_a_vllm_that_keeps_its_batch_elsewhere_samples_all_the_same(absent: str) -> None:
    sample = seed_plugin._without_unfinished_prompts(lambda _: "token")
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=1, generators={0: "a"}), discard_request_mask=SimpleNamespace(np=[True])
    )
    delattr(runner, absent)
    assert sample(runner) == "token"
