"""The description of one family of models, and the interface of its decoder.

A family is one file: its keys in Hugging Face and GGUF configurations, its tensors, and its decoder. These files
import torch only when a decoder is built, because a model is checked before anything is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo_engine.weights.checkpoint import Shape
from octavo_engine.weights.gguf_checkpoint import Restore
from octavo_engine.weights.gguf_config import GgufConfig
from octavo_engine.weights.hf_config import HfConfig
from octavo_engine.weights.model_config import ModelConfig
from octavo_engine.weights.reader import WeightReader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo_kernels import AttentionMetadata, Kernels

EMBEDDING = "model.embed_tokens.weight"
"""The table of token embeddings, under this name in every family."""


class Decoder(Protocol):
    """A loaded model. Activations have the weights' dtype, logits are fp32."""

    config: ModelConfig
    dtype: "torch.dtype"

    def forward(
        self, token_ids: "Tensor", kv_layers: "Sequence[Tensor]", meta: "AttentionMetadata", rows: "Tensor | None"
    ) -> "Tensor":
        """Write the KV of ``token_ids [T]`` and return the hidden states of tokens ``rows`` (of all if None).

        ``kv_layers`` has a view ``[blocks, 2, kv_heads, block_size, head_dim]`` of the cache for each layer. The result
        is normed, ready for ``logits``.
        """

    def logits(self, hidden: "Tensor") -> "Tensor":
        """Compute the logits ``[R, hidden_size] -> [R, vocab_size]`` in fp32."""


BuildDecoder = Callable[[ModelConfig, "Kernels", WeightReader, int], Decoder]
"""Reads and packs the weights. The last argument is the length of the longest sequence."""


def keep(name: str, tensor: "Tensor", config: ModelConfig) -> "Tensor":
    """Return a tensor that GGUF holds as transformers does."""
    return tensor


@dataclass(frozen=True, slots=True)
class GgufSpec:
    """The form of a family in GGUF files. ``architecture`` is its ``general.architecture``.

    ``names`` and ``restore`` are those of ``GgufCheckpoint``.
    """

    architecture: str
    config: Callable[[GgufConfig], ModelConfig]
    names: Mapping[str, str]
    restore: Restore = keep


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """All that distinguishes one family of models from the others.

    ``architecture`` is its name in ``config.json``. ``tensors`` returns names and shapes of all tensors, with the names
    of transformers. ``gguf`` is None if llama.cpp has no name for the family, or gives it the name of another.
    """

    architecture: str
    config: Callable[[HfConfig], ModelConfig]
    tensors: Callable[[ModelConfig], dict[str, Shape]]
    decoder: BuildDecoder
    gguf: GgufSpec | None = None
