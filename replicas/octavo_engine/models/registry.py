"""Model classes by architecture."""

from collections.abc import Callable, Mapping

import torch

from octavo_engine.models.llama import LlamaModel
from octavo_engine.models.tensors import tensors_of
from octavo_engine.weights.checkpoint import Checkpoint
from octavo_engine.weights.model_config import Family
from octavo_engine.weights.reader import WeightReader
from octavo_kernels import Kernels

MODELS: Mapping[Family, type[LlamaModel]] = {
    Family.LLAMA: LlamaModel,
    Family.MISTRAL: LlamaModel,
    Family.QWEN2: LlamaModel,
}


def load_model(
    checkpoint: Checkpoint,
    kernels: Kernels,
    dtype: torch.dtype,
    max_model_len: int,
    report: Callable[[str], None] = lambda _: None,
) -> LlamaModel:
    """Read and pack the weights layer by layer. Raises ``ModelError`` if they do not match the model."""
    config = checkpoint.config
    model = MODELS[config.family]
    weights = WeightReader(checkpoint, tensors_of(config), dtype, report)
    return model(config, kernels, weights, max_model_len)
