"""Reader of a model's configuration in the metadata of a GGUF file.

The keys are those of llama.cpp's ``convert_hf_to_gguf.py``. GGUF leaves out some settings (biases, tied embeddings).
The tensors in the file determine them. This module reads the keys that all families have. The file of a family reads
the others.
"""

from collections.abc import Mapping
from typing import Any

from octavo_engine.weights.fields import Fields
from octavo_engine.weights.gguf_file import GgufFile
from octavo_engine.weights.model_config import ModelConfig, RopeConfig, RopeKind, max_model_len

ROPE_FREQS = "rope_freqs.weight"
"""Tensor of the divisors of the rotary frequencies. It is a setting in the form of a tensor."""

_ROPE_KINDS = {"none": RopeKind.DEFAULT, "linear": RopeKind.LINEAR, "yarn": RopeKind.YARN}
_ENDS = ("eos", "eot", "eom")
"""End of text, of a turn, of a message: a chat model has written its answer at any of them (llama.cpp)."""


class GgufConfig(Fields):
    """The keys of the file's architecture, without its name before each, and the names of all tensors."""

    def __init__(self, file: GgufFile) -> None:
        self.architecture: Any = file.metadata.get("general.architecture")
        prefix = f"{self.architecture}."
        own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
        super().__init__(own, f"{file.path}: {self.architecture}")
        self.metadata: Mapping[str, Any] = file.metadata
        self.tensors = file.tensors.keys()
        self._file = file

    def freq_factors(self) -> tuple[float, ...]:
        """Return the values of ``ROPE_FREQS``; empty if the file has none."""
        if ROPE_FREQS not in self.tensors:
            return ()
        import torch

        return tuple(self._file.read(ROPE_FREQS, torch.float32).tolist())


def config_from_gguf(
    gguf: GgufConfig, *, kind: type[ModelConfig] = ModelConfig, family: str, **own: Any
) -> ModelConfig:
    """Return a configuration of ``kind``: the fields that all families have, and the family's ``own``.

    Raises ``ModelError`` naming file, key, value and the allowed values.
    """
    if experts := gguf.get("expert_count"):
        raise gguf.error("expert_count", experts, "models without experts")
    hidden_size = gguf.integer("embedding_length")
    num_heads = gguf.integer("attention.head_count")
    num_kv_heads = gguf.integer("attention.head_count_kv", num_heads)
    head_dim = gguf.integer("attention.key_length", hidden_size // num_heads)
    rotary = gguf.integer("rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise gguf.error("rope.dimension_count", rotary, f"the head's size, {head_dim}")
    positions = gguf.integer("context_length")
    rope = _rope(gguf, positions)
    num_layers = gguf.integer("block_count")
    window = gguf.get("attention.sliding_window") or None
    ends = (gguf.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _ENDS)
    fields: dict[str, Any] = {
        "family": family,
        "vocab_size": gguf.integer("vocab_size", len(gguf.metadata.get("tokenizer.ggml.tokens", ())) or None),
        "hidden_size": hidden_size,
        "intermediate_size": gguf.integer("feed_forward_length"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": gguf.number("attention.layer_norm_rms_epsilon"),
        "max_model_len": max_model_len(positions, rope),
        "rope": rope,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "sliding_windows": (window,) * num_layers,
        "eos_token_ids": frozenset(end for end in ends if end is not None),
    }
    return kind(**{**fields, **own})


def _rope(gguf: GgufConfig, positions: int) -> RopeConfig:
    theta = gguf.number("rope.freq_base", 10000.0)
    name = gguf.get("rope.scaling.type") or "none"
    if name not in _ROPE_KINDS:
        raise gguf.error("rope.scaling.type", name, ", ".join(_ROPE_KINDS))
    kind = _ROPE_KINDS[name]
    if kind is RopeKind.DEFAULT:
        return RopeConfig(theta=theta, freq_factors=gguf.freq_factors())
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=gguf.number("rope.scaling.factor"),
        original_max_position_embeddings=gguf.integer("rope.scaling.original_context_length", positions),
        freq_factors=gguf.freq_factors(),
    )
