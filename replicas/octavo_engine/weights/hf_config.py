"""Reader of ``config.json`` and ``generation_config.json`` as transformers 4 and 5 write them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo_api.errors import ModelError
from octavo_engine.weights.model_config import Family, ModelConfig, RopeConfig, RopeKind

_ACTIVATIONS = ("silu", "swish")
_FAMILIES = frozenset(map(str, Family))
_ROPE_KINDS = frozenset(map(str, RopeKind))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise ``ModelError`` naming a file that is missing, not JSON or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: got a JSON {type(value).__name__}, allowed: an object")
    return value


def config_from_folder(folder: Path) -> ModelConfig:
    """Read the model's configuration; the eos tokens of ``generation_config.json`` take precedence over its own.

    The tokenizer's end-of-text token ends an answer too, as in vLLM.

    Raises ``ModelError`` naming file, field, value and the allowed values.
    """
    generation = folder / "generation_config.json"
    defaults = read_json(generation) if generation.is_file() else {}
    path = folder / "config.json"
    config = config_from_hf(read_json(path), defaults, where=str(path))
    return replace(config, eos_token_ids=config.eos_token_ids | _tokenizers_eos(folder))


def _tokenizers_eos(folder: Path) -> frozenset[int]:
    path = folder / "tokenizer_config.json"
    described = read_json(path) if path.is_file() else {}
    eos = described.get("eos_token")
    text = eos.get("content") if isinstance(eos, Mapping) else eos
    tokens = described.get("added_tokens_decoder")
    if text is None or not isinstance(tokens, Mapping):
        return frozenset()
    same = (token for token, entry in tokens.items() if isinstance(entry, Mapping) and entry.get("content") == text)
    return frozenset(int(token) for token in same if token.isdecimal())


def config_from_hf(config: Mapping[str, Any], generation: Mapping[str, Any], *, where: str) -> ModelConfig:
    """Turn the two documents into a ``ModelConfig``; ``where`` names the file in errors."""
    fields = Fields(config, where)
    family = _family(config, where)
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "?") if isinstance(quantization, Mapping) else quantization
        raise ModelError(f"{where}: quantization_config: got {method!r}, allowed: unquantised weights, or a .gguf file")
    activation = config.get("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ModelError(f"{where}: hidden_act: got {activation!r}, allowed: {', '.join(_ACTIVATIONS)}")

    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(f"{where}: num_key_value_heads: got {num_kv_heads}, allowed: a divisor of {num_heads}")
    head_dim = fields.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise ModelError(f"{where}: head_dim: got {head_dim}, allowed: an even number")
    positions = fields.integer("max_position_embeddings")
    rope = _rope(config, positions, where)
    attention_bias = fields.boolean("attention_bias", False) and family is Family.LLAMA
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_model_len=max_model_len(positions, rope),
        rope=rope,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=attention_bias or family is Family.QWEN2,
        output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False) and family is Family.LLAMA,
        sliding_windows=_sliding_windows(family, fields),
        eos_token_ids=_eos(generation.get("eos_token_id", config.get("eos_token_id")), where),
    )


def max_model_len(positions: int, rope: RopeConfig) -> int:
    """Return the longest sequence under ``rope``: linear and yarn scaling stretch the positions (as in vLLM)."""
    if rope.kind is RopeKind.LINEAR:
        return int(positions * rope.factor)
    if rope.kind is RopeKind.YARN:
        return max(positions, int(rope.original_max_position_embeddings * rope.factor))
    return positions


class Fields:
    """Typed access to a document; errors name the file, the field, the value and the allowed values."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{self._where}: {name}: got {value!r}, allowed: a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{self._where}: {name}: got {value!r}, allowed: a positive number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self._where}: {name}: got {value!r}, allowed: true, false")
        return value

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self._where}: {name}: required, not given")
        return value


def _family(config: Mapping[str, Any], where: str) -> Family:
    architectures = config.get("architectures") or []
    for name in architectures:
        if name in _FAMILIES:
            return Family(name)
    shown = ", ".join(map(str, architectures)) or "nothing"
    raise ModelError(f"{where}: architectures: got {shown}, allowed: {', '.join(Family)}")


def _rope(config: Mapping[str, Any], positions: int, where: str) -> RopeConfig:
    parameters = {"rope_theta": config.get("rope_theta")}
    parameters |= config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise ModelError(f"{where}: rope_parameters: got parameters by layer type, allowed: one set for all layers")
    fields = Fields(parameters, f"{where}: rope_parameters")
    name = parameters.get("rope_type") or parameters.get("type") or "default"
    if name not in _ROPE_KINDS:
        raise ModelError(f"{where}: rope_parameters: rope_type: got {name!r}, allowed: {', '.join(RopeKind)}")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{where}: partial_rotary_factor: got {parameters['partial_rotary_factor']!r}, allowed: 1.0")
    kind = RopeKind(name)
    theta = fields.number("rope_theta", 10000.0)
    if kind is RopeKind.DEFAULT:
        return RopeConfig(theta=theta)
    factor = fields.number("factor")
    original = fields.integer("original_max_position_embeddings", positions)
    if kind is RopeKind.LINEAR:
        return RopeConfig(theta=theta, kind=kind, factor=factor)
    if kind is RopeKind.LLAMA3:
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=factor,
            original_max_position_embeddings=original,
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
        )
    if parameters.get("mscale") or parameters.get("mscale_all_dim"):
        raise ModelError(f"{where}: rope_parameters: mscale: got a value, allowed: yarn without mscale")
    attention = parameters.get("attention_factor")
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        attention_factor=None if attention is None else fields.number("attention_factor"),
        truncate=fields.boolean("truncate", True),
    )


def _sliding_windows(family: Family, fields: Fields) -> tuple[int | None, ...]:
    layers = fields.integer("num_hidden_layers")
    if family is Family.MISTRAL and fields.get("sliding_window") is not None:
        return (fields.integer("sliding_window"),) * layers
    if family is Family.QWEN2 and fields.boolean("use_sliding_window", False) and fields.get("sliding_window"):
        window = fields.integer("sliding_window")
        kinds = fields.get("layer_types")
        if kinds is None:
            first = fields.get("max_window_layers") or 0
            kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return (None,) * layers


def _eos(value: Any, where: str) -> frozenset[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        raise ModelError(f"{where}: eos_token_id: got {value!r}, allowed: a token id or a list of them")
    return frozenset(ids)
