"""How the engine reaches the weights: the token that a repository may need, read from the mounted secret.

Local folders are checked by the engine's preflight; repositories are fetched by the engine itself into the models
volume. The token goes into the engine's own environment and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from phasewise_runtime.model.uri import ModelLocation

TOKEN_KEYS: Final = ("token", "HF_TOKEN")


class ModelError(Exception):
    """The model cannot be reached; the message says what to change."""


def hub_token(location: ModelLocation, secrets_dir: str | None) -> str | None:
    """The Hugging Face token, where the model is fetched and a secret is named."""
    if location.local or secrets_dir is None:
        return None
    for key in TOKEN_KEYS:
        file = Path(secrets_dir) / key
        if file.is_file():
            if token := _read(file):
                return token
            raise ModelError(f"the secret of spec.model.secretRef has an empty key {key}: put the token there")
    keys = " or ".join(TOKEN_KEYS)
    raise ModelError(f"the secret of spec.model.secretRef has no key {keys}: put the Hugging Face token under it")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ModelError(f"the secret of spec.model.secretRef cannot be read: {error.strerror}") from None
