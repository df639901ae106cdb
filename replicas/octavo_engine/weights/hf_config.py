"""Reader of ``config.json`` and ``generation_config.json`` as transformers 4 and 5 write them.

It reads the fields that all families have. The file of a family reads the others.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from octavo_api.errors import ModelError
from octavo_engine.weights.fields import Fields
from octavo_engine.weights.model_config import ModelConfig, RopeConfig, RopeKind, max_model_len

SILU = ("silu", "swish")
_ROPE_KINDS = frozenset(map(str, RopeKind))


class HfConfig(Fields):
    """``config.json``, and the end tokens of all files beside it.

    The eos tokens of ``generation_config.json`` take precedence over those of ``config.json``. The tokenizer's
    end-of-text token ends an answer too, as in vLLM.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        generation: Mapping[str, Any] | None = None,
        tokenizer_eos: frozenset[int] = frozenset(),
        *,
        where: str,
    ) -> None:
        super().__init__(values, where)
        self.where = where
        self._generation = generation or {}
        self._tokenizer_eos = tokenizer_eos

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the files in ``folder``. Raises ``ModelError`` naming the file that is wrong."""
        generation = folder / "generation_config.json"
        defaults = read_json(generation) if generation.is_file() else {}
        path = folder / "config.json"
        return cls(read_json(path), defaults, _tokenizer_eos(folder), where=str(path))

    @property
    def architectures(self) -> Sequence[str]:
        return [str(name) for name in self.get("architectures") or []]

    @property
    def eos_token_ids(self) -> frozenset[int]:
        value = self._generation.get("eos_token_id", self.get("eos_token_id"))
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.error("eos_token_id", value, "a token id or a list of them")
        return frozenset(ids) | self._tokenizer_eos


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


def config_from_hf(
    hf: HfConfig,
    *,
    kind: type[ModelConfig] = ModelConfig,
    family: str,
    activations: Sequence[str] = SILU,
    rope: RopeConfig | None = None,
    **own: Any,
) -> ModelConfig:
    """Return a configuration of ``kind``: the fields that all families have, and the family's ``own``.

    ``rope`` is of a family whose layers differ in it; other families have one set of parameters in ``hf``.

    Raises ``ModelError`` naming file, field, value and the allowed values.
    """
    if quantization := hf.get("quantization_config"):
        method = quantization.get("quant_method", "?") if isinstance(quantization, Mapping) else quantization
        raise hf.error("quantization_config", method, "unquantised weights, or a .gguf file")
    activation = hf.get("hidden_act") or activations[0]
    if activation not in activations:
        raise hf.error("hidden_act", activation, ", ".join(activations))
    hidden_size = hf.integer("hidden_size")
    num_heads = hf.integer("num_attention_heads")
    num_kv_heads = hf.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise hf.error("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads}")
    head_dim = hf.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise hf.error("head_dim", head_dim, "an even number")
    positions = hf.integer("max_position_embeddings")
    rope = rope or _rope(hf, positions)
    num_layers = hf.integer("num_hidden_layers")
    fields: dict[str, Any] = {
        "family": family,
        "vocab_size": hf.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": hf.integer("intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": hf.number("rms_norm_eps", 1e-6),
        "max_model_len": max_model_len(positions, rope),
        "rope": rope,
        "tie_word_embeddings": hf.boolean("tie_word_embeddings", False),
        "sliding_windows": (None,) * num_layers,
        "eos_token_ids": hf.eos_token_ids,
    }
    return kind(**{**fields, **own})


def _tokenizer_eos(folder: Path) -> frozenset[int]:
    path = folder / "tokenizer_config.json"
    described = read_json(path) if path.is_file() else {}
    eos = described.get("eos_token")
    text = eos.get("content") if isinstance(eos, Mapping) else eos
    tokens = described.get("added_tokens_decoder")
    if text is None or not isinstance(tokens, Mapping):
        return frozenset()
    same = (token for token, entry in tokens.items() if isinstance(entry, Mapping) and entry.get("content") == text)
    return frozenset(int(token) for token in same if token.isdecimal())


def _rope(hf: HfConfig, positions: int) -> RopeConfig:
    parameters = {"rope_theta": hf.get("rope_theta")}
    parameters |= hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    where = f"{hf.where}: rope_parameters"
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise ModelError(f"{where}: got parameters by layer type, allowed: one set for all layers")
    fields = Fields(parameters, where)
    name = parameters.get("rope_type") or parameters.get("type") or "default"
    if name not in _ROPE_KINDS:
        raise fields.error("rope_type", name, ", ".join(RopeKind))
    if (factor := parameters.get("partial_rotary_factor", 1.0)) != 1.0:
        raise fields.error("partial_rotary_factor", factor, "1.0")
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
        raise ModelError(f"{where}: mscale: got a value, allowed: yarn without mscale")
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
