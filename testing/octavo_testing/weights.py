"""Small models of random weights in Hugging Face's layout, with the embedded model's tokenizer."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from octavo_api.startup.model_source import locate
from octavo_engine.models.registry import read_config, tensors_of
from octavo_engine.weights.hf_config import HfConfig
from octavo_text.from_gguf import describe_gguf

_COMMIT = "0" * 40
_SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def write(folder: Path, architecture: str) -> None:
    """Create the folder, with configuration, tokenizer and weights drawn by a fixed seed."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="octavo-e2e-") as cache:
        text = describe_gguf(locate("embedded://smollm2").path, Path(cache))
    config = {"architectures": [architecture], "vocab_size": text.vocab_size, **_SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    text.tokenizer.save(str(folder / "tokenizer.json"))
    noise = torch.Generator().manual_seed(0)
    shapes = tensors_of(read_config(HfConfig.read(folder)))
    tensors = {name: torch.randn(shape, generator=noise) * 0.2 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")


def write_into_hub_cache(home: Path, name: str, architecture: str, revision: str = "main") -> None:
    """Write a model as a download of hub model ``name`` leaves it below ``HF_HOME``."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    write(repository / "snapshots" / _COMMIT, architecture)
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(_COMMIT)
