"""The Hugging Face token comes from the mounted secret, where the model is fetched and a secret is named."""

from pathlib import Path

import pytest

from phasewise_runtime.model.fetch import ModelError, hub_token
from phasewise_runtime.model.uri import model_location

REMOTE = model_location("hf://org/name")


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
