"""The embedded model's tokenizer, and files written on the spot."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from octavo_api.startup.model_source import EMBEDDED, locate
from octavo_testing.text import vocabularies
from octavo_text import ModelText


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return ModelText.load(locate(EMBEDDED), cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded: ModelText) -> Tokenizer:
    """The library's own object, as an oracle for decoding."""
    return embedded._tokenizer


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file with values, and with the keyword ``architecture``."""
    from octavo_testing.text import gguf_files  # half a second

    def write(values: Mapping[str, Any], *, architecture: str = "llama") -> Path:
        return gguf_files.write_gguf(tmp_path / "model.gguf", values, architecture)

    return write


@pytest.fixture(scope="session")
def sentencepiece_values() -> dict[str, Any]:
    return vocabularies.sentencepiece_values()
