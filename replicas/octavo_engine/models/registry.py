"""The families that the engine serves, and the way from a model's files to its decoder."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from octavo_api.errors import ModelError
from octavo_api.startup.model_source import Format, ModelFiles
from octavo_engine.models.family import Decoder, FamilySpec
from octavo_engine.models.llama import LLAMA
from octavo_engine.models.mistral import MISTRAL
from octavo_engine.models.qwen2 import QWEN2
from octavo_engine.weights.checkpoint import Checkpoint, Shape
from octavo_engine.weights.gguf_checkpoint import GgufCheckpoint
from octavo_engine.weights.gguf_config import GgufConfig
from octavo_engine.weights.gguf_file import GgufFile
from octavo_engine.weights.hf_config import HfConfig
from octavo_engine.weights.model_config import ModelConfig
from octavo_engine.weights.reader import WeightReader
from octavo_engine.weights.safetensors_checkpoint import SafetensorsCheckpoint

if TYPE_CHECKING:
    import torch

    from octavo_kernels import Kernels

_FAMILIES: dict[str, FamilySpec] = {spec.architecture: spec for spec in (LLAMA, MISTRAL, QWEN2)}


def tensors_of(config: ModelConfig) -> dict[str, Shape]:
    """Return names and shapes of all tensors of a model, with the names of transformers."""
    return _FAMILIES[config.family].tensors(config)


def num_parameters(config: ModelConfig) -> int:
    """Return the number of weights to keep in memory; tied embeddings count once."""
    return sum(math.prod(shape) for shape in tensors_of(config).values())


def read_config(hf: HfConfig) -> ModelConfig:
    """Read the configuration of a model in ``config.json``.

    Raises ``ModelError`` naming file, field, value and the allowed values. For an architecture that no family has,
    these are the architectures of all families.
    """
    for name in hf.architectures:
        if name in _FAMILIES:
            return _FAMILIES[name].config(hf)
    shown = ", ".join(hf.architectures) or "nothing"
    raise ModelError(f"{hf.where}: architectures: got {shown}, allowed: {', '.join(_FAMILIES)}")


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Read headers only. Raises ``ModelError`` naming the file and the fault."""
    return open_gguf(files.path) if files.format is Format.GGUF else open_folder(files.path)


def open_folder(folder: Path) -> SafetensorsCheckpoint:
    """Read the headers of a folder of safetensors files."""
    return SafetensorsCheckpoint(folder, read_config(HfConfig.read(folder)))


def open_gguf(path: Path) -> GgufCheckpoint:
    """Read the headers of a GGUF file."""
    file = GgufFile(path)
    config = GgufConfig(file)
    by_name = {spec.gguf.architecture: spec.gguf for spec in _FAMILIES.values() if spec.gguf}
    gguf = by_name.get(config.architecture) if isinstance(config.architecture, str) else None
    if gguf is None:
        allowed = ", ".join(by_name)
        raise ModelError(f"{path}: general.architecture: got {config.architecture!r}, allowed: {allowed}")
    return GgufCheckpoint(file, gguf.config(config), gguf.names, gguf.restore)


def load_model(
    checkpoint: Checkpoint,
    kernels: "Kernels",
    dtype: "torch.dtype",
    max_model_len: int,
    report: Callable[[str], None] = lambda _: None,
) -> Decoder:
    """Read and pack the weights layer by layer. Raises ``ModelError`` if they do not match the model."""
    config = checkpoint.config
    weights = WeightReader(checkpoint, tensors_of(config), dtype, report)
    return _FAMILIES[config.family].decoder(config, kernels, weights, max_model_len)
