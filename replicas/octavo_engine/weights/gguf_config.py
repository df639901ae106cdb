"""Reader of a model's configuration in the metadata of a GGUF file.

The keys are those of llama.cpp's ``convert_hf_to_gguf.py``. GGUF leaves out some settings (biases, tied embeddings).
The tensors in the file determine them.
"""

from collections.abc import Mapping, Set
from typing import Any

from octavo_api.errors import ModelError
from octavo_engine.weights.hf_config import Fields, max_model_len
from octavo_engine.weights.model_config import Family, ModelConfig, RopeConfig, RopeKind

ROPE_FREQS = "rope_freqs.weight"

_FAMILIES = {"llama": Family.LLAMA, "qwen2": Family.QWEN2}
_ROPE_KINDS = {"none": RopeKind.DEFAULT, "linear": RopeKind.LINEAR, "yarn": RopeKind.YARN}
_ENDS = ("eos", "eot", "eom")
"""End of text, of a turn, of a message: a chat model has written its answer at any of them (llama.cpp)."""


def config_from_gguf(
    metadata: Mapping[str, Any], tensors: Set[str], freq_factors: tuple[float, ...], *, where: str
) -> ModelConfig:
    """Return the configuration; ``tensors`` are the names in the file, ``freq_factors`` the values of ``ROPE_FREQS``.

    Raises ``ModelError`` naming ``where``, the key, its value and the allowed values.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in _FAMILIES:
        allowed = ", ".join(_FAMILIES)
        raise ModelError(f"{where}: general.architecture: got {architecture!r}, allowed: {allowed}")
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    fields = Fields(own, f"{where}: {architecture}")
    if fields.get("expert_count"):
        raise ModelError(f"{where}: expert_count: got {fields.get('expert_count')}, allowed: models without experts")
    hidden_size = fields.integer("embedding_length")
    num_heads = fields.integer("attention.head_count")
    num_kv_heads = fields.integer("attention.head_count_kv", num_heads)
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    rotary = fields.integer("rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise ModelError(f"{where}: rope.dimension_count: got {rotary}, allowed: the head's size, {head_dim}")
    positions = fields.integer("context_length")
    rope = _rope(fields, positions, freq_factors, where)
    layers = fields.integer("block_count")
    window = fields.get("attention.sliding_window") or None
    ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _ENDS)
    return ModelConfig(
        family=_FAMILIES[architecture],
        vocab_size=fields.integer("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())) or None),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_model_len=max_model_len(positions, rope),
        rope=rope,
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        sliding_windows=(window,) * layers,
        eos_token_ids=frozenset(end for end in ends if end is not None),
    )


def _rope(fields: Fields, positions: int, freq_factors: tuple[float, ...], where: str) -> RopeConfig:
    theta = fields.number("rope.freq_base", 10000.0)
    name = fields.get("rope.scaling.type") or "none"
    if name not in _ROPE_KINDS:
        raise ModelError(f"{where}: rope.scaling.type: got {name!r}, allowed: {', '.join(_ROPE_KINDS)}")
    kind = _ROPE_KINDS[name]
    if kind is RopeKind.DEFAULT:
        return RopeConfig(theta=theta, freq_factors=freq_factors)
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=fields.number("rope.scaling.factor"),
        original_max_position_embeddings=fields.integer("rope.scaling.original_context_length", positions),
        freq_factors=freq_factors,
    )
