"""Preflight finds out what lies in a model's folder."""

import json
from dataclasses import replace
from pathlib import Path

from tests.runtime.engine.golden import GOLDEN

from phasewise_runtime.engine.checks import ModelFiles
from phasewise_runtime.engine.preflight import gather


def files_of(folder: Path) -> ModelFiles:
    model = gather(replace(GOLDEN["cpu prefill"], model_uri=f"file://{folder}"), folder).model
    assert model is not None
    return model


def test_a_complete_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 4}')
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert files_of(tmp_path) == ModelFiles(
        str(tmp_path), exists=True, settings={"num_attention_heads": 4}, has_tokenizer=True, weight_bytes=5
    )


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert not files_of(tmp_path / "absent").exists


def test_a_config_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert files_of(tmp_path).settings is None


def test_a_shard_named_by_the_index_but_not_there(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"1")
    assert files_of(tmp_path).missing_shards == ("model-2.safetensors",)


def test_a_fetched_model_has_no_files_yet(tmp_path: Path) -> None:
    facts = gather(replace(GOLDEN["cpu prefill"], model_uri="hf://org/name"), tmp_path)
    assert facts.model is None
    assert facts.gpu_memory is None
    assert facts.scratch_free
